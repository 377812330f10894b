"""Shared libraries on disk: whether one is all there, and another one where it is damaged.

The loader maps what a file's header tells of, however long the file is. Where it is shorter, as a
copy is that a full disk ended, the first touch of what is missing ends the process with SIGBUS.
Read is the header of ELF files (System V Application Binary Interface, chapters 4 and 5).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from graphopt.kernels.cache import folder, is_readable

_Loaded = TypeVar("_Loaded")

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_ELF_OF_64_BITS = b"\x7fELF\x02\x01"
#: A segment that is in memory when the code runs.
_LOAD = 1


def is_whole(path: Path) -> bool:
    """Whether there is a file that this user may read, and nothing is cut off its end.

    One that is no library counts as whole: the loader refuses it.
    """
    if not is_readable(path):
        return False
    try:
        with path.open("rb") as file:
            return _mapped_bytes(file) <= os.fstat(file.fileno()).st_size
    except (OSError, struct.error):  # not even the header is there
        return False


def _mapped_bytes(file: BinaryIO) -> int:
    """Where the last part that is loaded into memory ends."""
    head = file.read(_HEADER.size)
    if not _ELF_OF_64_BITS.startswith(head[: len(_ELF_OF_64_BITS)]):  # an empty file goes on
        return 0
    _, _, _, _, _, place, _, _, _, _, count, _, _, _ = _HEADER.unpack(head)
    file.seek(place)
    table = file.read(_SEGMENT.size * count)
    segments = [_SEGMENT.unpack_from(table, _SEGMENT.size * at) for at in range(count)]
    return max(
        (start + n for kind, _, start, _, _, n, _, _ in segments if kind == _LOAD), default=0
    )


def loaded(library: Callable[[], Path], load: Callable[[Path], _Loaded]) -> _Loaded:
    """What ``load`` makes of a library; one that it refuses is removed and built again.

    Args:
        library: finds it, or builds it.
        load: raises OSError or ImportError where it is damaged.
    """
    path = library()
    try:
        return load(path)
    except (ImportError, OSError):
        if not _discard(path):
            raise
        return load(library())


def _discard(path: Path) -> bool:
    """Remove a library; whether that was possible, and another one will take its place."""
    if path.parent != folder() / "bridge":  # it came with the wheel, or was built a moment ago
        return False
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
