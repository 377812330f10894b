"""How the process gets its memory."""

from __future__ import annotations

import ctypes
import os
from functools import cache

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
#: The largest block glibc can be told to take from its heap.
_LARGEST_HEAP_BLOCK = 32 << 20
#: As large as the heaps of threads, which are then not given back when they happen to be empty.
_PAD = 64 << 20
_DEFAULT_MB = 1024


@cache
def keep_freed_memory() -> bool:
    """Have the C library keep memory that MXNet frees, to hand it out again.

    MXNet allocates its results anew on every call. From its own settings glibc takes blocks of some
    megabytes from the kernel and gives them back each time, and the page faults of that cost more
    than computing what is in them: 17 ms became 10 for a forward and backward of 4 million
    elements. ``GRAPHOPT_KEEP_MEMORY_MB`` bounds what is kept (default 1024); 0 changes nothing.

    Returns:
        Whether it was done.
    """
    kept = os.environ.get("GRAPHOPT_KEEP_MEMORY_MB", "")
    megabytes = int(kept) if kept.isdigit() else _DEFAULT_MB
    if not megabytes:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    bytes_kept = min(megabytes << 20, 2**31 - 1)
    settings = {
        _M_MMAP_THRESHOLD: _LARGEST_HEAP_BLOCK,
        _M_TRIM_THRESHOLD: bytes_kept,
        _M_TOP_PAD: _PAD,
    }
    done = [mallopt(name, value) for name, value in settings.items()]
    return all(done)
