"""Where compiled kernels are kept: one file each, in a folder that processes share.

A file is written under another name and then renamed, so that nobody ever sees half of one, and
carries a checksum, so that a damaged one is compiled again. A folder that cannot be written to, as
one in the image of a container, is read all the same; what it lacks is kept in a folder of the
process, and costs each one time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_MAGIC = b"graphopt kernel 1\n"
_DIGEST = 32
#: What entries are: folder and ending of their files.
OBJECTS, MEASUREMENTS = ("kernels", ".o"), ("measurements", ".json")
RESULTS = ("graphs", ".pickle")
#: What files and folders are called. A user may have named a folder with files of his own, so none
#: is counted or removed by its ending alone.
_DIGIT = "[0-9a-f]"
_KEY, _SHORT_KEY = _DIGIT * 32, _DIGIT * 16
_BRIDGES, _RECORDERS = f"bridge-{_SHORT_KEY}.so", f"graphopt_recording-{_SHORT_KEY}.so"
_UNFINISHED = f".new-{_SHORT_KEY}"  # what a process has begun to write
#: Seconds after which nobody goes on writing a file.
_ABANDONED = 3600
#: Bytes of all entries of a kind together, above which those unused for longest go.
MAX_BYTES = {OBJECTS: 256 << 20, RESULTS: 64 << 20}
#: The part of these that is freed at once, and that a process may write before it counts again.
_PART = 1 / 32
#: By folder: bytes when its entries were counted, and what this process wrote since.
_counts: dict[Path, tuple[int, int]] = {}


def folder() -> Path:
    """Where to write: ``GRAPHOPT_CACHE_DIR``, else the platform's cache folder.

    Where it cannot be written to, a folder for this process alone.
    """
    return _usable(wanted())


def folders() -> list[Path]:
    """Where to read entries: :func:`folder`, and :func:`wanted` if that is another."""
    return list(dict.fromkeys((folder(), wanted())))


#: What no file can be made in: each attempt is an OSError, as on a disk that is full.
_NOWHERE = Path(os.devnull) / "graphopt"


def wanted() -> Path:
    """The folder that was asked for, whether or not it can be written to."""
    return _wanted(os.environ.get("GRAPHOPT_CACHE_DIR"))


def is_kept() -> bool:
    """Whether what is stored outlives this process."""
    return folder() == wanted() != _NOWHERE and os.access(folder(), os.W_OK)


@cache
def _wanted(named: str | None) -> Path:
    if named:
        # Absolute from here on: the process may go to another folder.
        return Path(os.path.expanduser(named)).absolute()  # noqa: PTH111 - raises for no ~user
    import platformdirs

    try:
        return Path(platformdirs.user_cache_dir("graphopt"))
    except RuntimeError:  # an account without a home
        return _NOWHERE


@cache
def _usable(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        if os.environ.get("GRAPHOPT_CACHE_DIR"):  # somebody thinks that it can
            _warn(path, error)
        made = _private()
        if made == _NOWHERE and not os.access(path, os.W_OK):
            return path  # each attempt to write is an OSError there as well
        with contextlib.suppress(OSError):  # of the disk
            _link(path, made)
        return made


def _link(place: Path, made: Path) -> None:
    """Have a new folder begin with the libraries of one that cannot be written to.

    They are few, and are replaced where they are damaged.
    """
    for name in ("bridge", "packing"):
        for path in (place / name).rglob("*"):
            if path.is_file():
                link = made / path.relative_to(place)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)


def _private() -> Path:
    """A new folder, for this process alone."""
    import atexit

    try:
        made = Path(tempfile.mkdtemp(prefix="graphopt-"))
    except OSError:  # all of the file system is read-only
        return _NOWHERE
    atexit.register(_remove, made, os.getpid())
    return made


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked
        shutil.rmtree(path, ignore_errors=True)


def write_atomically(path: Path, data: bytes, *, synced: bool = False) -> None:
    """Make ``path`` a file with ``data``, whatever other processes do at the same time.

    Args:
        path: of the file.
        data: what it holds.
        synced: have it on the disk before it gets its name. That takes a while, and is for what has
            no checksum: else a machine that fails may have kept the name alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by `tempfile`, whose files no other user can read, whatever the umask allows.
    new = path.with_name(f".new-{os.urandom(8).hex()}")
    try:
        with new.open("xb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _warn(path: Path, error: OSError) -> None:
    # Where warnings are errors, this one still must not lose what took minutes to compile.
    with contextlib.suppress(RuntimeWarning):
        text = (
            f"{path} cannot be written ({error.strerror or error}): what is compiled serves"
            " this process alone, and the next one compiles it again"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def is_readable(path: Path) -> bool:
    """Whether there is a file that this user may read: others may keep theirs for themselves."""
    return os.access(path, os.R_OK)


def written(path: Path, data: bytes) -> Path:
    """A library with ``data``: ``path``, or where the disk is full one for this process alone."""
    try:
        write_atomically(path, data, synced=True)
    except OSError as error:
        _warn(path, error)
        path = _private() / path.name
        path.write_bytes(data)
    return path


def load(key: str, kind: tuple[str, str] = OBJECTS) -> bytes | None:
    """What was stored under ``key``; ``None`` if there is nothing, or it is damaged."""
    found = map(_load, _paths(key, kind))
    return next((data for data in found if data is not None), None)


def _load(path: Path) -> bytes | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    head, rest = raw[: len(_MAGIC)], raw[len(_MAGIC) :]
    digest, data = rest[:_DIGEST], rest[_DIGEST:]
    if head != _MAGIC or hashlib.sha256(data).digest() != digest:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return data


def has(key: str, kind: tuple[str, str] = OBJECTS) -> bool:
    """Whether something was stored under ``key`` for this user to read, damaged or not."""
    return any(map(is_readable, _paths(key, kind)))


def store(key: str, data: bytes, kind: tuple[str, str] = OBJECTS) -> None:
    """Keep ``data`` under ``key``; nothing happens where the folder does not allow it."""
    raw = _MAGIC + hashlib.sha256(data).digest() + data
    with contextlib.suppress(OSError):
        write_atomically(_paths(key, kind)[0], raw)
        if kind in MAX_BYTES:
            _keep_bound(kind, len(raw))


def key_of(*parts: str) -> str:
    """The name of an entry that depends on ``parts``."""
    # What the system tells, such as paths in the environment, may be no UTF-8.
    text = "\0".join(parts).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:32]


def digest_of(files: Iterable[Path]) -> str:
    """Of the source of code that emits kernels: an edited graphopt compiles them again."""
    return key_of(*(file.read_text() for file in files))


@dataclass(frozen=True)
class Info:
    """What the cache holds."""

    folder: Path
    kernels: int
    bridges: int
    graphs: int
    nbytes: int


def info() -> Info:
    """Count the entries."""
    places = folders()
    found = (
        _entries(places, OBJECTS),
        _files(places, "bridge", _BRIDGES),
        _entries(places, RESULTS),
    )
    sizes = [{path.name: size for path, size, _ in kind} for kind in found]  # one may be in both
    kernels, bridges, graphs = map(len, sizes)
    return Info(wanted(), kernels, bridges, graphs, sum(sum(kind.values()) for kind in sizes))


def clear() -> Info:
    """Remove all entries; returns what there was."""
    before = info()
    # File by file, never a folder with all that is in it: a user may have named any folder at all,
    # such as this project's, which has a folder `kernels` of its own.
    patterns = {name: [f"{_KEY}{ending}"] for name, ending in (OBJECTS, MEASUREMENTS, RESULTS)}
    for place in folders():
        for name, found in {**patterns, "bridge": [_BRIDGES, _RECORDERS]}.items():
            for pattern in (*found, _UNFINISHED):
                for path, _, _ in _files([place], name, pattern):
                    with contextlib.suppress(OSError):
                        path.unlink()
            with contextlib.suppress(OSError):  # not empty, or not there
                (place / name).rmdir()
        _clear_loops(place / "packing")
    if folder() != wanted():
        with contextlib.suppress(OSError):  # of the disk
            _link(wanted(), folder())  # to libraries that nobody could remove
    return before


def _clear_loops(place: Path) -> None:
    """Remove what numba wrote for the memory packer: indices and code, two folders deep."""
    for path in place.glob(f"{_SHORT_KEY}/*/*.nb[ic]"):
        with contextlib.suppress(OSError):
            path.unlink()
    for level in (f"{_SHORT_KEY}/*", _SHORT_KEY, "."):
        for path in place.glob(level) if level != "." else [place]:
            with contextlib.suppress(OSError):  # not empty, or not there
                path.rmdir()


def _paths(key: str, kind: tuple[str, str]) -> list[Path]:
    """Where an entry may be, and first of all where it is written."""
    name, ending = kind
    return [place / name / f"{key}{ending}" for place in folders()]


def _entries(places: Iterable[Path], kind: tuple[str, str]) -> Iterator[tuple[Path, int, float]]:
    name, ending = kind
    return _files(places, name, f"{_KEY}{ending}")


def _files(places: Iterable[Path], name: str, pattern: str) -> Iterator[tuple[Path, int, float]]:
    for place in places:
        for path in (place / name).glob(pattern):
            with contextlib.suppress(OSError):
                found = path.stat()
                yield path, found.st_size, found.st_mtime


def _keep_bound(kind: tuple[str, str], written: int) -> None:
    """Trim at the first entry that a process writes, and then seldom.

    To count takes a look at each file, and there may be thousands. Other processes write as well,
    so each counts again before it has written much.
    """
    place, most = folder() / kind[0], MAX_BYTES[kind]
    if place in _counts:
        counted, before = _counts[place]
        since = before + written
        if counted + since <= most and since <= most * _PART:
            _counts[place] = counted, since
            return
    _counts[place] = _trim(kind), 0


def _trim(kind: tuple[str, str]) -> int:
    """Remove what nobody finishes, and what was unused for longest; returns the bytes left."""
    places = [folder()]
    for path, _, written in list(_files(places, kind[0], _UNFINISHED)):  # by killed processes
        if written < time.time() - _ABANDONED:
            with contextlib.suppress(OSError):
                path.unlink()
    files = list(_entries(places, kind))
    most, total = MAX_BYTES[kind], sum(size for _, size, _ in files)
    if total <= most:
        return total
    for path, size, _ in sorted(files, key=lambda entry: entry[2]):
        if total <= most * (1 - _PART):
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
    return total
