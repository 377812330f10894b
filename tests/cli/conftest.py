"""A small model in three forms, a pass that is wrong, and the command run in this process."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from graphopt.cli.main import main
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.passes import registry
from graphopt.pipeline.base import Pass, PassContext

ROOT = Path(__file__).resolve().parents[2]

NET = """\
graph net(%data: f32[2,4], param %weight: f32[3,4], param %bias: f32[3]) {
  %fc = FullyConnected(%data, %weight, %bias) {num_hidden=3} : f32[2,3]
  %left = relu(%fc) : f32[2,3]
  %right = relu(%fc) : f32[2,3]
  %sum = elemwise_add(%left, %right) : f32[2,3]
  %unused = exp(%sum) : f32[2,3]
  return %sum
}
"""


class Ran(NamedTuple):
    """What a call of the command left."""

    code: int
    out: str
    err: str


Graphopt = Callable[..., Ran]


@pytest.fixture
def graphopt(capfd: pytest.CaptureFixture[str]) -> Graphopt:
    """The command: ``graphopt("opt", path, "-p", "dce")``."""

    def call(*argv: object) -> Ran:
        capfd.readouterr()
        code = main([str(argument) for argument in argv])
        return Ran(code, *capfd.readouterr())

    return call


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """The model as text."""
    path = tmp_path / "net.gir"
    path.write_text(NET)
    return path


@pytest.fixture
def net_json(tmp_path: Path) -> Path:
    """The model as Symbol JSON, without shapes."""
    from graphopt.backend.symbol import to_json

    path = tmp_path / "net-symbol.json"
    path.write_text(to_json(parse(NET)))
    return path


@dataclass(frozen=True)
class Double(Pass):
    """Every output is twice what it was: wrong, for the tests."""

    name: ClassVar[str] = "double"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        changed = graph.copy()
        first = graph.outputs[0]
        twice = changed.add(
            "_mul_scalar", [first], {"scalar": 2.0}, (graph.type_of(first),), "twice"
        )
        changed.set_outputs([twice])
        return changed


@dataclass(frozen=True)
class Crash(Pass):
    """Raises, for the tests."""

    name: ClassVar[str] = "crash"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        raise ValueError("on purpose")


@pytest.fixture
def wrong_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers ``double`` and ``crash``."""
    module = types.ModuleType("graphopt_wrong_passes")
    for cls in (Double, Crash):
        setattr(module, cls.__name__, cls)
        monkeypatch.setitem(registry.passes, cls.name, f"{module.__name__}:{cls.__name__}")
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def terminal() -> Callable[..., str]:
    """Runs the command on a terminal of 200 columns and returns what that shows."""

    def call(*argv: object, **env: str) -> str:
        ours, theirs = pty.openpty()
        settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", **env}
        if "NO_COLOR" not in env:
            settings.pop("NO_COLOR", None)
        command = [sys.executable, "-m", "graphopt", *map(str, argv)]
        with subprocess.Popen(command, cwd=ROOT, env=settings, stdout=theirs, stderr=theirs):
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # how Linux tells that the other side is closed
                while part := os.read(ours, 65536):
                    shown += part
        os.close(ours)
        return shown.decode()

    return call
