"""Compiled kernels on disk: shared by processes, whole or not there, never in the way."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from graphopt.errors import MissingDependencyError
from graphopt.kernels import bridge, cache, library, machine
from graphopt.kernels.bridge import build
from tests.places import REPOSITORY

SPEC = "f32[a] (f32[a]) { %1 = tanh %0; %2 = mul %1 %0; return %2:f32[a] }"
#: Of an entry.
KEY = cache.key_of("an entry")

#: Runs the kernel as a user's process would, and tells how it came by it.
RUN = f"""
import json, sys
import numpy as np
from graphopt.kernels import library
from graphopt.kernels.run import run
from graphopt.kernels.spec import parse
x = np.linspace(-2, 2, 1000, dtype="float32")
(y,) = run(parse({SPEC!r}), [x])
np.testing.assert_allclose(y, np.tanh(x) * x, rtol=1e-5, atol=1e-6)
print(json.dumps(vars(library.STATISTICS) | {{"numba": "numba" in sys.modules}}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a process that has compiled nothing yet."""
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_kernels", {})
    monkeypatch.setattr(library, "STATISTICS", library.Statistics())
    return tmp_path / "cache"


@pytest.fixture
def with_bridge(tmp_path: Path) -> Path:
    """A cache folder without kernels, but with the bridge, which takes seconds to build."""
    mxnet = build.installed()
    assert mxnet is not None
    made = build.library(mxnet)
    place = tmp_path / "cache"
    (place / "bridge").mkdir(parents=True)
    shutil.copy(made, place / "bridge" / made.name)
    return place


def start(place: Path, code: str = RUN, **settings: str) -> subprocess.Popen[str]:
    env = {**os.environ, "GRAPHOPT_CACHE_DIR": str(place), "OMP_NUM_THREADS": "1", **settings}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def entries(place: Path) -> list[Path]:
    return sorted((place / "kernels").glob("*.o"))


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
    def refuse(path: Path, data: bytes) -> None:
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


def test_two_processes_at_once_and_one_that_comes_later(with_bridge: Path) -> None:
    first, second = start(with_bridge), start(with_bridge)
    for process in (first, second):
        found = told(process)
        assert found["compiled"] + found["loaded"] == 1
    assert [path.suffix for path in (with_bridge / "kernels").iterdir()] == [".o"]
    later = told(start(with_bridge))
    assert later == {"compiled": 0, "here": 0, "loaded": 1, "by_llvm": 0, "numba": False}


KILLED_COMPILING = """
import time
from graphopt.kernels import cpu
def compile_object(spec, **how):
    print("compiling", flush=True)
    time.sleep(100)
cpu.compile_object = compile_object
"""
KILLED_WRITING = """
import time
from pathlib import Path
def replace(path, target):
    print("writing", flush=True)
    time.sleep(100)
Path.replace = replace
"""


@pytest.mark.parametrize("when", [KILLED_COMPILING, KILLED_WRITING], ids=["compiling", "writing"])
def test_a_process_that_is_killed_leaves_nothing_by_halves(with_bridge: Path, when: str) -> None:
    with start(with_bridge, when + RUN, GRAPHOPT_COMPILERS="0") as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() in ("compiling", "writing")
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert entries(with_bridge) == []
    assert told(start(with_bridge))["compiled"] == 1
    (path,) = entries(with_bridge)
    assert path.stat().st_size > 500


@pytest.mark.parametrize("damaged", [b"", b"\x7fELF", bytes(1000)], ids=["empty", "short", "zeros"])
def test_a_damaged_bridge_is_built_again(
    with_bridge: Path, monkeypatch: pytest.MonkeyPatch, damaged: bytes
) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(with_bridge))
    mxnet = build.installed()
    assert mxnet is not None
    kept = build._kept(mxnet)
    good = kept.read_bytes()
    builds: list[Path] = []

    def rebuild(of: Path) -> bytes:
        builds.append(of)
        return good

    monkeypatch.setattr(build, "build", rebuild)
    cache.write_atomically(kept, damaged)
    assert bridge._open(mxnet).graphopt_run
    assert kept.read_bytes() == good
    assert builds == [mxnet]


@pytest.fixture
def full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, where there is room for empty files only."""

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(cache, "write_atomically", refuse)
    return folder


def test_a_bridge_on_a_full_disk_serves_the_process_that_built_it(
    with_bridge: Path, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mxnet = build.installed()
    assert mxnet is not None
    kept = build._kept(mxnet)
    good = kept.read_bytes()
    kept.unlink()
    monkeypatch.setattr(build, "build", lambda of: good)
    with pytest.warns(RuntimeWarning, match="no space left on device.*this process alone"):
        assert bridge._open(mxnet).graphopt_run
    assert build.find(mxnet) is None


def test_a_bridge_of_another_user_is_built_for_this_process(
    with_bridge: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mxnet = build.installed()
    assert mxnet is not None
    kept = build._kept(mxnet)
    good = kept.read_bytes()

    def refuse(path: Path, data: bytes) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may be root's
    monkeypatch.setattr(cache, "write_atomically", refuse)
    monkeypatch.setattr(build, "build", lambda of: good)
    with pytest.warns(RuntimeWarning, match="not yours.*this process alone"):
        path = build.library(mxnet)
    assert path.read_bytes() == good
    assert folder not in path.parents


def test_warnings_that_are_errors_lose_no_bridge(
    full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "build", lambda of: b"library")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = build.library(build.installed())
    assert path.read_bytes() == b"library"
    assert full_disk not in path.parents


def test_a_bridge_that_is_built_ahead_has_to_last(
    full_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "build", lambda of: b"library")
    with pytest.warns(RuntimeWarning, match="no space left on device"):
        assert build.main() == 1
    told = f"{full_disk}/bridge cannot be written to; until then every process builds its own\n"
    assert capsys.readouterr().err == told


def test_building_ahead_says_what_it_did(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "build", lambda of: b"library")
    assert build.main() == 0
    assert "fused kernels are ready: " in capsys.readouterr().out
    assert [path.read_bytes() for path in (folder / "bridge").iterdir()] == [b"library"]


def test_building_ahead_says_what_does_not_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert build.main() == 1
    said = capsys.readouterr().err
    assert "need a C++ compiler" in said
    assert "until then graphopt works, but leaves operators unfused" in said
    monkeypatch.setattr(build, "installed", lambda: None)
    assert build.main() == 1
    assert capsys.readouterr().err.startswith("MXNet is not installed here; until then")


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


def test_a_compiler_without_openmp_is_told_what_to_install(tmp_path: Path) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text(
        "#!/bin/sh\necho \"a.h:1: fatal error: 'omp.h' file not found\" >&2; exit 1\n"
    )
    compiler.chmod(0o755)
    with pytest.raises(MissingDependencyError, match="install OpenMP's headers"):
        build.run_compilers([[str(compiler)]])
