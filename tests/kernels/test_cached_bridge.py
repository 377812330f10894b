"""The bridge on disk: built again where it is no good, and ahead where that is asked for."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

import pytest

from graphopt.kernels import bridge, cache
from graphopt.kernels.bridge import build


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


def test_who_waits_for_the_compiler_is_told_so_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_nothing(commands: list[list[str]]) -> None:
        for command in commands:
            Path(command[command.index("-o") + 1]).write_bytes(b"a library")

    mxnet = build.installed()
    assert mxnet is not None
    monkeypatch.setattr(build, "run_compilers", compile_nothing)
    assert build.library(mxnet).read_bytes() == b"a library"
    build.library(mxnet)
    (told,) = caplog.messages
    assert "about a minute" in told
    assert build.compiler() in told


@pytest.fixture
def full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder, where there is room for empty files only."""

    def refuse(*_: object, **__: object) -> None:
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

    def refuse(*_: object, **__: object) -> None:
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
