"""C++ compilers that fail or take too long: what is told, and that none goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from graphopt.errors import MissingDependencyError
from graphopt.kernels.bridge import build

#: Like g++, it waits for another process that does the work; it says which.
_SLOW = 'sleep 60 & echo $! >"$1"; wait'


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def ends(path: Path) -> bool:
    """Whether the process that a slow compiler named there is no more, or will be in a moment."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{int(path.read_text())}/stat").read_text().rsplit(")", 1)[1]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state.split()[0] in "ZX":
            return True
        time.sleep(0.1)
    return False


def test_a_compiler_without_openmp_is_told_what_to_install(tmp_path: Path) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text(
        "#!/bin/sh\necho \"a.h:1: fatal error: 'omp.h' file not found\" >&2; exit 1\n"
    )
    compiler.chmod(0o755)
    with pytest.raises(MissingDependencyError, match="install OpenMP's headers"):
        build.run_compilers([[str(compiler)]])


def test_one_that_takes_too_long_is_ended_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_SECONDS", 1)
    slow = script(tmp_path / "cxx", _SLOW)
    with pytest.raises(MissingDependencyError, match=r"cxx cannot .* takes more than 1 seconds"):
        build.run_compilers([[str(slow), str(tmp_path / "worker")]])
    assert ends(tmp_path / "worker")


def test_after_an_error_none_goes_on_and_none_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    slow = script(tmp_path / "slow", _SLOW)
    wait = f'while [ ! -s "{tmp_path}/worker" ]; do sleep 0.01; done'
    failing = script(tmp_path / "failing", f'{wait}; echo "an error" >&2; exit 1')
    late = script(tmp_path / "late", f'echo begun >"{tmp_path}/late-begun"')
    commands = [[str(slow), str(tmp_path / "worker")], [str(failing)], [str(late)], [str(late)]]
    with pytest.raises(MissingDependencyError, match=r"failing cannot .* an error"):
        build.run_compilers(commands)
    assert ends(tmp_path / "worker")
    assert not (tmp_path / "late-begun").exists()


def test_who_interrupts_the_build_ends_it(tmp_path: Path) -> None:
    interrupt = f"sleep 1; kill -s INT {os.getpid()}"  # when we wait for it
    slow = script(tmp_path / "cxx", _SLOW.replace("; wait", f"; {interrupt}; wait"))
    before: Any = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            build.run_compilers([[str(slow), str(tmp_path / "worker")]])
    finally:
        signal.signal(signal.SIGINT, before)
    assert ends(tmp_path / "worker")
