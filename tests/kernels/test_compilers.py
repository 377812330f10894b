"""Kernels compiled by other processes, and by this one where there are none."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphopt.errors import GraphoptError
from graphopt.kernels import compilers, library
from graphopt.kernels.contract import prepared
from graphopt.kernels.spec_parser import parse
from tests.places import REPOSITORY


def text(number: float) -> str:
    return f"f32[a] (f32[a]) {{ %1 = mul %0 {number}; %2 = tanh %1; return %2:f32[a] }}"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No kernel is known, and nobody compiles yet."""
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GRAPHOPT_COMPILERS", "1")
    monkeypatch.setattr(library, "_kernels", {})
    monkeypatch.setattr(library, "_begun", {})
    monkeypatch.setattr(library, "STATISTICS", library.Statistics())
    monkeypatch.setattr(compilers, "_why_not", None)
    monkeypatch.setattr(compilers, "_pool", None)
    monkeypatch.setattr(compilers, "_children", weakref.WeakSet())
    yield
    for child in list(compilers._children):
        child.end()


def compile_(number: float) -> tuple[int, int]:
    """Compile a kernel; how many were compiled, and how many of these here."""
    assert library.kernel(text(number), backward=False).address
    return library.STATISTICS.compiled, library.STATISTICS.here


def test_another_process_compiles_what_is_asked_for() -> None:
    from graphopt.kernels.cpu import compile_object

    spec = prepared(parse("f32[a|b] (f32[a,b]) { %1 = reduce_sum %0; return %1:f32[a] }"))
    begun = compilers.submit(compilers.Job(spec))
    assert begun is not None
    code, scratch = compile_object(spec)
    assert begun.result().scratch_rows == scratch
    assert abs(len(begun.result().code) - len(code)) < 100  # names differ
    assert library.link(begun.result().code)


def test_kernels_that_are_expected_are_compiled_once() -> None:
    library.expect([(text(3.0), False), (text(3.0), True), (text(3.0), False)])
    assert len(library._begun) == 2
    library.prepare([text(3.0)], gradients=True)
    assert not library._begun
    assert (library.STATISTICS.compiled, library.STATISTICS.here) == (2, 0)
    library.expect([(text(3.0), True)])
    assert not library._begun


@pytest.mark.parametrize("setting", ["0", "1"])
def test_the_setting_says_who_compiles(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("GRAPHOPT_COMPILERS", setting)
    assert compile_(4.0) == (1, setting == "0")
    why = compilers.why_not()
    assert why == ("GRAPHOPT_COMPILERS is 0" if setting == "0" else None)


def test_one_that_was_killed_is_replaced() -> None:
    compile_(5.0)
    (child,) = compilers._children
    child._process.kill()
    child._process.wait()
    assert compile_(6.0) == (2, 0)


def test_one_that_another_thread_has_ended_is_replaced() -> None:
    compile_(5.0)
    (child,) = compilers._children
    child.end()
    assert compile_(6.0) == (2, 0)
    assert compile_(7.0) == (3, 0)


def test_errors_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.kernels import cpu

    def fail(*_: Any, **__: Any) -> Any:
        raise GraphoptError("no such instruction")

    monkeypatch.setattr(cpu, "compile_object", fail)
    monkeypatch.setattr(library, "submit", lambda _job: failed())
    with pytest.raises(GraphoptError, match="no such instruction"):
        compile_(7.0)


def failed() -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()
    future.set_exception(compilers.CompilerError("ValueError: anything"))
    return future


def test_an_error_there_is_told() -> None:
    broken = compilers.Job("no spec")  # type: ignore[arg-type]
    begun = compilers.submit(broken)
    assert begun is not None
    with pytest.raises(compilers.CompilerError, match="AttributeError"):
        begun.result()
    assert compile_(8.0) == (1, 0)  # by the same one


@pytest.mark.parametrize("does", ["exit 3", "echo hello", "printf 'graphopt compiler 2\\n%80s' x"])
def test_a_python_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.warns(
        RuntimeWarning, match="it does not begin; this one compiles its kernels itself"
    ):
        assert compile_(9.0) == (1, 1)
    assert compilers.why_not() == "no other process compiles: it does not begin"
    assert compile_(10.0) == (2, 2)


@pytest.mark.parametrize("executable", ["/usr/sbin/uwsgi", "", None, "/opt/program"])
def test_python_within_another_program(
    monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert compilers.why_not() == "Python is a part of another program"
    assert compile_(11.0) == (1, 1)


def test_a_forked_child_has_its_own() -> None:
    compile_(12.0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, json.dumps(compile_(13.0)).encode())
            for one in list(compilers._children):
                one.end()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert json.loads(answer.read()) == [2, 0]
    os.waitpid(child, 0)
    assert compile_(14.0) == (2, 0)


def test_it_ends_when_there_is_nothing_to_do() -> None:
    code = "from graphopt.kernels import compilers as c; c._IDLE_S = 0.2; c.serve()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=(pipe := os.pipe())[0],
        capture_output=True,
        cwd=REPOSITORY,
        timeout=60,
        check=True,
    )
    for end in pipe:
        os.close(end)
    assert done.stdout == b"graphopt compiler 1\n"


def test_who_asks_loads_no_compiler() -> None:
    code = (
        "import sys; from graphopt.kernels.library import STATISTICS, prepare;"
        f"prepare([{text(15.0)!r}], gradients=True);"
        "print(STATISTICS.compiled, STATISTICS.here, *{'numba', 'llvmlite'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["2", "0"]


def test_behind_a_thousand_open_files_and_odd_paths() -> None:
    """In a process of its own, whose limits and files are no others'."""
    code = f"""
import os, pathlib, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if hard != resource.RLIM_INFINITY and hard < 1200:
    print("too few"); raise SystemExit
resource.setrlimit(resource.RLIMIT_NOFILE, (1200, hard))
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
sys.path.append(pathlib.Path("/nowhere"))
from graphopt.kernels import compilers, library
assert library.kernel({text(3.5)!r}, backward=False).address
print(compilers.why_not(), library.STATISTICS.here)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() in ("None 0", "too few")
    assert done.stderr == ""
