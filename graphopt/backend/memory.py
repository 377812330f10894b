"""How the process gets its memory."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
#: As large as the heaps of threads, which are then not given back when they happen to be empty.
_PAD = 64 << 20
_DEFAULT_MB = 1024
#: Bytes that a process has to have grown by for memory to be given back.
_LEAST_GROWTH = 16 << 20


@cache
def keep_freed_memory() -> bool:
    """Have the C library keep memory that MXNet frees, to hand it out again.

    MXNet allocates its results anew on every call. From its own settings glibc takes blocks of some
    megabytes from the kernel and gives them back each time, and the page faults of that cost more
    than computing what is in them: 17 ms became 10 for a forward and backward of 4 million
    elements. ``GRAPHOPT_KEEP_MEMORY_MB`` bounds what is kept free at the end of the heap (default
    1024); 0 changes nothing.

    Returns:
        Whether it was done.
    """
    bytes_kept = min(_megabytes_kept() << 20, 2**31 - 1)
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: bytes_kept, _M_TOP_PAD: _PAD}
    return bool(bytes_kept) and _set(settings)


def share_one_heap() -> bool:
    """Have the C library give all threads that start from now on one heap.

    A thread's own heap holds no block of more than 64 MB; larger ones come from the kernel on every
    call, whatever else it is told. So this is done before MXNet starts its threads. With 0 in
    ``GRAPHOPT_KEEP_MEMORY_MB`` it is not.

    Returns:
        Whether it was done.
    """
    return bool(_megabytes_kept()) and _set({_M_ARENA_MAX: 1})


def give_back_freed_memory(*, always: bool = False) -> bool:
    """Have the C library give the kernel what is free now.

    Compiling takes memory that calls do not take again: candidates have copies of weights, in
    orders of their own. What :func:`keep_freed_memory` has kept is not all of it, since it is free
    between what is taken. It takes some milliseconds, up to 50 where blocks are many, so it is not
    done where the process has hardly grown since the last time, unless it is to be done ``always``.

    Returns:
        Whether it was done.
    """
    if not always and _resident() < _Given.resident + _LEAST_GROWTH:
        return False
    try:
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    except (OSError, AttributeError):
        return False  # another C library
    _Given.resident = _resident()
    return True


class _Given:
    """What was resident when memory was given back last, in bytes."""

    resident = 0


def _resident() -> int:
    """Bytes of the process that are in memory; 0 where nobody tells."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def _megabytes_kept() -> int:
    kept = os.environ.get("GRAPHOPT_KEEP_MEMORY_MB", "")
    return int(kept) if kept.isdigit() else _DEFAULT_MB


def _set(settings: Mapping[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    done = [mallopt(name, value) for name, value in settings.items()]
    return all(done)
