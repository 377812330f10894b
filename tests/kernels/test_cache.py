"""Compiled kernels on disk: as they were, kept up to a size, never in the way."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from graphopt.kernels import cache, library, machine
from graphopt.kernels.bridge import build
from tests.kernels.cache_support import SPEC, entries

#: Of an entry.
KEY = cache.key_of("an entry")


def make() -> tuple[int, int]:
    """Get the kernel as a new process would; returns how often it was compiled and loaded."""
    library._kernels.clear()
    before = library.STATISTICS.compiled, library.STATISTICS.loaded
    assert library.kernel(SPEC, backward=False).address
    return library.STATISTICS.compiled - before[0], library.STATISTICS.loaded - before[1]


def test_entries_come_back_as_they_were(folder: Path) -> None:
    for data in (b"", b"x", bytes(range(256)) * 999):
        cache.store(KEY, data)
        assert cache.load(KEY) == data
    assert cache.load("other") is None
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    assert path == folder / "kernels" / f"{KEY}.o"
    assert cache.info() == cache.Info(folder, 1, 0, 0, path.stat().st_size)


def test_kernels_are_compiled_once(folder: Path) -> None:
    assert make() == (1, 0)
    assert make() == (0, 1)
    assert len(entries(folder)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:10],
        lambda raw: raw[:-1],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw + b"\0",
        lambda raw: raw[:500] + bytes([raw[500] ^ 1]) + raw[501:],
        lambda raw: b"graphopt kernel 0\n" + raw[18:],
        lambda raw: bytes(len(raw)),
    ],
    ids=["empty", "no head", "short", "half", "long", "a bit", "another version", "zeros"],
)
def test_damaged_entries_are_compiled_again(folder: Path, damage: Any) -> None:
    make()
    (path,) = entries(folder)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert make() == (1, 0)
    assert len(path.read_bytes()) == len(whole)
    assert make() == (0, 1)


def test_an_entry_that_cannot_be_read_is_compiled_again(folder: Path) -> None:
    make()
    (path,) = entries(folder)
    path.unlink()
    path.mkdir()
    assert make() == (1, 0)


def test_a_folder_that_is_none_costs_time_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "~no-such-user-anywhere/x"):
        monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(place))
        if Path(place).is_absolute():
            assert not cache.is_kept()
            assert cache.folder() != Path(place)
        else:
            monkeypatch.chdir(tmp_path)
            assert cache.folder().is_dir()
        assert make() == (1, 0)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_folder_that_cannot_be_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    told = r"cannot be written \(not yours\): what is compiled serves this process alone"
    with monkeypatch.context() as patch:
        patch.setattr(cache.tempfile, "TemporaryFile", refuse)
        with pytest.warns(RuntimeWarning, match=told):
            private = cache.folder()
    assert private != folder
    assert make() == (1, 0)
    assert list(folder.iterdir()) == []


def test_a_full_disk_costs_time_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(cache, "write_atomically", refuse)
    assert make() == (1, 0)
    assert make() == (1, 0)
    assert entries(folder) == []


def test_a_write_that_fails_leaves_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "x"
    cache.write_atomically(path, b"before")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(OSError, match="no space"):
            cache.write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(folder.iterdir()) == [path]


def test_libraries_are_on_the_disk_before_they_have_their_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "bridge" / "library.so"
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append((os.fstat(file).st_size, path.exists()))
    )
    cache.store(KEY, b"data")  # has a checksum
    assert synced == []
    assert cache.written(path, b"library") == path
    assert synced == [(7, False)]
    assert path.read_bytes() == b"library"


def test_users_may_read_what_the_umask_lets_them(folder: Path) -> None:
    before = os.umask(0o027)
    try:
        cache.store("key", b"data")
        cache.write_atomically(folder / "bridge" / "bridge.so", b"library")
    finally:
        os.umask(before)
    for path in (folder / "kernels" / "key.o", folder / "bridge" / "bridge.so"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_keys_of_what_is_no_text() -> None:
    keys = {cache.key_of(os.fsdecode(raw)) for raw in (b"/jos", b"/jos\xe9", b"/jos\xe8")}
    assert len(keys) == 3


def test_a_relative_folder_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", "here")
    cache.store("key", b"data")
    monkeypatch.chdir("/")
    assert cache.load("key") == b"data"
    assert cache.folder() == tmp_path / "here"


def test_the_largest_size_holds_and_the_oldest_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000
    keys = [cache.key_of(str(number)) for number in range(7)]
    for number, key in enumerate(keys[:6]):
        cache.store(key, bytes(1000))
        os.utime(folder / "kernels" / f"{key}.o", (now + number, now + number))
    assert cache.load(keys[0]) is not None  # now the youngest
    monkeypatch.setitem(cache.MAX_BYTES, cache.OBJECTS, 4500)
    cache.store(keys[6], bytes(1000))
    assert {path.stem for path in entries(folder)} == {keys[place] for place in (0, 4, 5, 6)}
    assert cache.info().nbytes <= 4500


def test_files_of_the_user_are_not_counted_and_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", {cache.OBJECTS: 0, cache.RESULTS: 0})
    theirs = [folder / name / f"mine{ending}" for name, ending in (cache.OBJECTS, cache.RESULTS)]
    theirs.append(folder / "graphs" / ".new-ideas")
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (1_700_000_000, 1_700_000_000))
    for kind in (cache.OBJECTS, cache.RESULTS):
        cache.store(KEY, bytes(1000), kind)
    assert sorted(folder.rglob("*.*")) == sorted(theirs)
    assert cache.info() == cache.Info(folder, 0, 0, 0, 0)


def test_clear_knows_every_name(folder: Path) -> None:
    from graphopt.batching import speedups

    mxnet = build.installed()
    assert mxnet is not None
    make()
    for kind in (cache.MEASUREMENTS, cache.RESULTS):
        cache.store(KEY, b"data", kind)
    for path in (build._kept(mxnet), speedups._kept()):
        cache.write_atomically(path, b"library")
    cache.clear()
    assert list(folder.iterdir()) == []


def test_the_entries_are_counted_seldom_and_the_largest_size_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims: list[int] = []
    trim = cache._trim
    monkeypatch.setattr(cache, "_trim", lambda kind: trims.append(trim(kind)) or trims[-1])
    monkeypatch.setitem(cache.MAX_BYTES, cache.OBJECTS, 200_000)
    for number in range(20):
        cache.store(cache.key_of(str(number)), bytes(200))
    assert len(trims) == 1  # at the first
    for number in range(20, 220):
        # Another process, which this one is told nothing of, writes as much.
        cache.write_atomically(folder / "kernels" / f"{cache.key_of(f'o{number}')}.o", bytes(1000))
        cache.store(cache.key_of(str(number)), bytes(1000))
        assert cache.info().nbytes <= 200_000 * 34 / 32
    assert len(trims) < 60
    assert cache.info().nbytes > 180_000


def test_what_killed_processes_left_goes_when_it_is_old(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store("key", b"data")
    monkeypatch.setattr(cache, "_counts", {})  # as in a new process
    old, young = f".new-{'0' * 16}", f".new-{'1' * 16}"
    for name, age in ((old, 1_700_000_000), (young, None)):
        path = folder / "kernels" / name
        path.write_bytes(b"half")
        if age is not None:
            os.utime(path, (age, age))
    cache.store("other", b"data")
    names = {path.name for path in (folder / "kernels").iterdir()}
    assert names == {"key.o", "other.o", young}


def test_keys_depend_on_what_code_depends_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    real = library._environment()
    for place in range(len(real)):
        other = (*real[:place], real[place] + "+other", *real[place + 1 :])
        with monkeypatch.context() as patch:
            patch.setattr(library, "_environment", lambda other=other: other)
            assert make() == (1, 0)
            assert make() == (0, 1)
    assert make() == (0, 1)
    assert len(entries(folder)) == 1 + len(real)


def test_the_environment_names_cpu_and_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from importlib import metadata

    compute = library._environment.__wrapped__
    real = compute()
    assert metadata.version("llvmlite") in real
    monkeypatch.setattr(metadata, "version", lambda name: "0.0")
    assert compute() != real
    monkeypatch.undo()
    told = machine._TOLD.read_text()
    monkeypatch.setattr(machine, "_TOLD", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "identity", machine.identity.__wrapped__)
    machine._TOLD.write_text(told)
    assert compute() == real
    machine._TOLD.write_text(re.sub("(cpu MHz|bogomips).*", r"\1: 12.5", told))
    assert compute() == real
    for name in ("flags", "model name", "CPU part", "Features"):
        changed = re.sub(rf"(?m)^({name}\s*:).*", r"\1 other", told)
        machine._TOLD.write_text(changed)
        assert (compute() != real) == (changed != told)
    machine._TOLD.write_text("processor : 0\n")
    assert llvm.get_host_cpu_name() in compute()
    machine._TOLD.unlink()
    assert llvm.get_host_cpu_name() in compute()


def test_results_are_those_of_a_kernel_just_compiled(folder: Path) -> None:
    import ctypes

    def call(address: int) -> Any:
        x, y = np.linspace(-3, 3, 64, dtype="float32"), np.zeros(64, "float32")
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)
        pointers = (ctypes.c_int64 * 2)(x.ctypes.data, y.ctypes.data)
        strides = (ctypes.c_int64 * 2)()
        signature(address)(
            ctypes.addressof(pointers),
            ctypes.addressof(strides),
            1,
            64,
            0,
        )
        return y

    compiled = call(library.kernel(SPEC, backward=False).address)
    library._kernels.clear()
    loaded = call(library.kernel(SPEC, backward=False).address)
    assert (library.STATISTICS.compiled, library.STATISTICS.loaded) == (1, 1)
    np.testing.assert_array_equal(loaded, compiled)


def test_without_a_home_a_folder_of_the_process_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: Any) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("GRAPHOPT_CACHE_DIR", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_dir", homeless)
    for memory in (cache._wanted, cache._usable):
        memory.cache_clear()
    try:
        cache.store(KEY, b"x")
        assert cache.load(KEY) == b"x"
        assert not cache.is_kept()
        assert make() == (1, 0)
        assert make() == (0, 1)
    finally:
        for memory in (cache._wanted, cache._usable):
            memory.cache_clear()


def test_where_nothing_can_be_written_everything_is_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", refuse)
        patch.setattr("tempfile.mkdtemp", refuse)
        cache._usable.cache_clear()
        with pytest.warns(RuntimeWarning, match="Read-only file system"):
            cache.store(KEY, b"x")
        assert cache.load(KEY) is None
        assert not cache.has(KEY)
        assert not cache.is_kept()
        assert cache.info().kernels == 0
        assert [make(), make()] == [(1, 0), (1, 0)]
    cache._usable.cache_clear()
