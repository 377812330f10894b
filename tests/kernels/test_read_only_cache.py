"""A cache folder that can be read and not written to: what it holds serves, and stays as it is."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphopt.batching import speedups
from graphopt.kernels import cache, library
from graphopt.kernels.bridge import build
from graphopt.kernels.shared_library import loaded
from tests.kernels.cache_support import SPEC
from tests.places import REPOSITORY

OTHER = SPEC.replace("tanh", "exp")
MINE, THEIRS, LATER = map(cache.key_of, ("mine", "theirs", "later"))


def refuse(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EROFS, "Read-only file system")


def files(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def make(spec: str) -> tuple[int, int]:
    """Get a kernel as a new process would; returns how often it was compiled and loaded."""
    library._kernels.clear()
    library.STATISTICS.compiled = library.STATISTICS.loaded = 0
    assert library.kernel(spec, backward=False).address
    return library.STATISTICS.compiled, library.STATISTICS.loaded


@pytest.fixture
def read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a kernel, a graph and two libraries, which nobody may write to any more.

    Tests may be root's, whom no mode of a folder keeps out.
    """
    mxnet = build.installed()
    assert mxnet is not None
    make(SPEC)
    cache.store(THEIRS, b"graph", cache.RESULTS)
    for path in (build._kept(mxnet), speedups._kept()):
        cache.write_atomically(path, b"library")
    before = files(folder)
    assert len(before) == 4
    cache._usable.cache_clear()
    with monkeypatch.context() as patch:
        unlink = Path.unlink

        def unlinked(path: Path, missing_ok: bool = False) -> None:
            if folder in path.parents:
                refuse()
            unlink(path, missing_ok=missing_ok)

        patch.setattr(cache.tempfile, "TemporaryFile", refuse)
        patch.setattr(Path, "unlink", unlinked)
        with pytest.warns(RuntimeWarning, match="Read-only file system"):
            assert cache.folder() != folder
        yield folder
    cache._usable.cache_clear()
    assert files(folder) == before


def test_entries_are_read_and_new_ones_kept_for_the_process(read_only: Path) -> None:
    assert make(SPEC) == (0, 1)
    assert (make(OTHER), make(OTHER)) == ((1, 0), (0, 1))
    assert cache.load(THEIRS, cache.RESULTS) == b"graph"
    assert cache.has(THEIRS, cache.RESULTS)
    cache.store(MINE, b"mine", cache.RESULTS)
    assert cache.load(MINE, cache.RESULTS) == b"mine"
    assert not cache.has(LATER, cache.RESULTS)
    assert not cache.is_kept()


def test_libraries_are_found(read_only: Path) -> None:
    mxnet = build.installed()
    assert mxnet is not None
    for path in (build.library(mxnet), speedups._library()):
        assert path.resolve().parent == read_only / "bridge"
        assert path.read_bytes() == b"library"


def test_libraries_that_stay_are_found_behind_a_clearing(read_only: Path) -> None:
    mxnet = build.installed()
    assert mxnet is not None
    for _ in range(2):
        cache.clear()
        for path in (build._kept(mxnet), speedups._kept()):
            assert path.resolve().parent == read_only / "bridge"
            assert path.read_bytes() == b"library"


def test_what_is_damaged_is_made_again(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = (read_only / "graphs").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert cache.load(THEIRS, cache.RESULTS) is None
    cache.store(THEIRS, b"again", cache.RESULTS)
    assert cache.load(THEIRS, cache.RESULTS) == b"again"
    path.write_bytes(whole)

    def load(path: Path) -> bytes:
        if path.read_bytes() == b"library":
            raise OSError("damaged")
        return path.read_bytes()

    monkeypatch.setattr(speedups, "_build", lambda: b"built")
    assert loaded(speedups._library, load) == b"built"


def test_all_that_there_is_is_counted_once_and_cleared_where_it_can_be(read_only: Path) -> None:
    sizes = [len(data) for path, data in files(read_only).items() if "recording" not in path.name]
    assert cache.info() == cache.Info(read_only, 1, 1, 1, sum(sizes))
    cache.store(MINE, b"mine", cache.RESULTS)
    cache.store(THEIRS, b"graph", cache.RESULTS)
    assert cache.info().graphs == 2
    assert cache.clear().graphs == 2
    assert cache.info() == cache.Info(read_only, 1, 1, 1, sum(sizes))


def test_without_a_temporary_folder_it_is_read(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache.tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    monkeypatch.setattr(cache, "write_atomically", refuse)
    cache._usable.cache_clear()
    with pytest.warns(RuntimeWarning, match="Read-only file system"):
        assert make(SPEC) == (0, 1)
    assert make(OTHER) == (1, 0)
    assert not cache.is_kept()
    assert build.library(build.installed() or read_only).read_bytes() == b"library"


PACKS = """
import sys, tempfile
from pathlib import Path
from graphopt.kernels import cache

if sys.argv[1:]:
    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")
    make = tempfile.TemporaryFile
    cache.tempfile.TemporaryFile = refuse
    cache.folder()
    tempfile.TemporaryFile = make
from graphopt.kernels.packing.compiled import compiled

@compiled
def twice(number):
    return 2 * number

assert twice(3) == 6
print(sum(twice.stats.cache_hits.values()), sum(twice.stats.cache_misses.values()))
"""


def test_loops_of_the_packer_are_found(tmp_path: Path) -> None:
    script = tmp_path / "packs.py"  # numba keeps nothing of what is in no file
    script.write_text(PACKS)
    told = []
    for arguments in ([], ["read-only"]):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(script), *arguments],
            env=os.environ
            | {"GRAPHOPT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert told == ["0 1\n", "1 0\n"]
