"""Results of pipelines that later processes find instead of running the passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import graphopt
from graphopt.backend import kept_results, tuning
from graphopt.backend.findings import Findings
from graphopt.backend.kept_results import kept_result
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.naming import renamed
from graphopt.ir.node import FUSED
from graphopt.ir.parser import parse
from graphopt.kernels import cache
from graphopt.passes.dce import EliminateDeadCode
from graphopt.passes.select_gemm import SelectGemm
from graphopt.pipeline.base import Pass, PassContext

mx = import_mxnet()
nn = mx.gluon.nn

TEXT = (
    "graph g(%x: f32[2,3], param %w: f32[4,3]) {"
    "%y = FullyConnected(%x, %w) {no_bias=True, num_hidden=4} %z = relu(%y) %u = exp(%z)"
    "return %z }"
)
#: Building another one takes a minute.
BRIDGE = cache.folder() / "bridge"
SETTINGS = {"mode": "inference", "frozen": True, "device": "cpu"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in use."""
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("graphopt.backend.measured.ENABLED", True)
    return tmp_path


class Pipeline:
    """Runs passes over a graph, and counts how often."""

    def __init__(self, text: str = TEXT, passes: Any = "dce,fuse-pointwise") -> None:
        self.graph, self.passes, self.runs = parse(text), passes, 0
        self.settings: dict[str, Any] = dict(SETTINGS)
        self.findings = Findings()

    def __call__(self) -> Any:
        def run(graph: Graph) -> Any:
            self.runs += 1
            return graphopt.run(graph, self.passes, mode=self.settings["mode"])

        with self.findings.active():
            return kept_result(self.graph, self.passes, self.settings, run)


def test_passes_run_once() -> None:
    first, second = Pipeline(), Pipeline()
    made, found = first(), second()
    assert (first.runs, second.runs) == (1, 0)
    assert (made.is_remembered, found.is_remembered) == (False, True)
    assert str(made.graph) == str(found.graph)
    assert (made.receipts, made.remarks) == (found.receipts, found.remarks)
    assert cache.info().graphs == 1


def test_what_they_depend_on_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    Pipeline()()
    others = [
        Pipeline(TEXT.replace("[2,3]", "[5,3]")),
        Pipeline(TEXT.replace("relu", "tanh")),
        Pipeline(passes="dce"),
    ]
    others.append(Pipeline())
    others[-1].settings["mode"] = "training"
    for other in others:
        other()
        assert other.runs == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    other = Pipeline()
    other()
    assert other.runs == 1
    monkeypatch.setattr(kept_results, "_surroundings", lambda: ("edited",))
    other = Pipeline()
    other()
    assert other.runs == 1


def test_names_do_not_count() -> None:
    text = (
        "graph g(%x: f32[64,3], param %w: f32[64,3]) {"
        "%y = tanh(%x) : f32[64,3] %z = elemwise_mul(%y, %w) : f32[64,3] return %z }"
    )
    first, second = Pipeline(text), Pipeline(text)
    second.graph = renamed(second.graph, lambda name: {"w": "z", "z": "w"}.get(name, f"({name})*"))
    made, found = first(), second()
    assert (first.runs, second.runs) == (1, 0)
    assert [node.name for node in found.graph.inputs] == ["(x)*", "z"]
    (fused,) = (node for node in found.graph if node.op == FUSED)
    (others,) = (node for node in made.graph if node.op == FUSED)
    assert found.graph.name == "(g)*"
    assert (others.name, fused.name) == ("z_fused", "w_fused")
    assert (others.origin, fused.origin) == (("y", "z"), ("(y)*", "w"))
    assert [remark.nodes for remark in found.remarks] != [remark.nodes for remark in made.remarks]
    assert not any("@" in str(told) for told in (found.graph, *found.remarks, *made.remarks))


def test_which_parameter_is_shared_counts() -> None:
    text = (
        "graph g(%x: f32[2,2], param %v: f32[2,2], param %w: f32[2,2]) {"
        "%a = dot(%x, %v) %b = dot(%a, %w) return %b }"
    )
    texts = text, text.replace("%a, %w", "%a, %v"), text.replace("%x, %v", "%x, %w")
    for each in texts:
        pipeline = Pipeline(each)
        pipeline()
        assert pipeline.runs == 1


def test_failures_name_what_the_user_knows() -> None:
    graph = parse(TEXT)

    def fail(given: Graph) -> Any:
        raise GraphoptError(f"not {given.find_input(given.role('param')[0].name).name}")

    with pytest.raises(GraphoptError, match="not w"):
        kept_result(graph, "dce", SETTINGS, fail)


def test_the_environment_may_be_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_HOME", os.fsdecode(b"/home/jos\xe9"))
    first, second = Pipeline(), Pipeline()
    first()
    second()
    assert (first.runs, second.runs) == (1, 0)


def test_code_is_told_by_when_it_was_written() -> None:
    told = list(kept_results._code())
    here = Path(kept_results.__file__)
    (mine,) = [line for line in told if f"{here} " in line]
    assert mine.endswith(str(here.stat().st_mtime_ns))
    assert any("passes/dce.py" in line for line in told)


@pytest.mark.parametrize("what", ["passes", "device", "disabled"])
def test_what_is_not_kept(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        pipeline = Pipeline()
        if what == "passes":
            pipeline.passes = (EliminateDeadCode(),)
        if what == "device":
            pipeline.settings["device"] = "gpu"
        if what == "disabled":
            monkeypatch.setattr("graphopt.backend.measured.ENABLED", False)
        assert not pipeline().is_remembered
        assert pipeline.runs == 1
    assert cache.info().graphs == 0


def test_what_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Graph:
        raise GraphoptError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(EliminateDeadCode, "run", fail)
        assert Pipeline()().receipts[0].status == "rolled back"
    again = Pipeline()
    assert again().receipts[0].status == "changed"
    assert again.runs == 1


def test_what_went_by_other_sizes_is_not_kept() -> None:
    known = Findings([(4, 3)])
    known.note(("there",), 7)
    first = Pipeline()
    first.findings = Findings([(2, 3)], [known])
    assert first.findings.taken(("there",)) == 7
    first()
    assert cache.info().graphs == 0


def test_what_cannot_be_pickled_is_not_kept() -> None:
    """Such as objects of classes whose module was imported anew since."""
    pipeline = Pipeline()
    pipeline.findings.note(("there",), lambda: 7)
    assert not pipeline().is_remembered
    assert pipeline.runs == 1
    assert cache.info().graphs == 0


def test_what_was_measured_is_noted_again() -> None:
    first, second = Pipeline(), Pipeline()
    first.findings.note(("product", "y"), [1.0, 2.0])
    first()
    second()
    assert second.findings.notes == [(("product", "y"), [1.0, 2.0])]


@pytest.mark.parametrize("data", [b"", b"no pickle", b"cgraphopt.nowhere\nThing\n."])
def test_what_cannot_be_read_is_made_again(data: bytes, folder: Path) -> None:
    Pipeline()()
    (entry,) = (folder / "graphs").iterdir()
    cache.store(entry.stem, data, cache.RESULTS)
    again = Pipeline()
    assert not again().is_remembered
    assert Pipeline()().is_remembered


def test_initializers_are_those_of_the_graph_at_hand() -> None:
    def made(address: str) -> Any:
        pipeline = Pipeline()
        (weight,) = pipeline.graph.role("param")
        attrs = weight.attrs.set(__init__=f'["constant_{address}", {{}}]')
        pipeline.graph.update(weight.but(attrs=attrs))
        result = pipeline()
        (weight,) = result.graph.role("param")
        return result.is_remembered, weight.attrs["__init__"]

    assert made("0x1") == (False, '["constant_0x1", {}]')
    assert made("0x2") == (True, '["constant_0x2", {}]')


@pytest.fixture
def net() -> Any:
    net = nn.HybridSequential(prefix="kept_")
    with net.name_scope():
        net.add(nn.Dense(8, activation="tanh", in_units=6), nn.LayerNorm(in_channels=8))
    net.initialize(mx.init.Xavier())
    return net


def test_nets_run_what_was_kept(net: Any) -> None:
    x = mx.nd.random.uniform(shape=(3, 6))
    for training in (False, True):
        found = []
        for is_remembered in (False, True):
            fast = graphopt.optimize(net)
            if training:
                x.attach_grad()
                with mx.autograd.record():
                    out = fast(x)
                out.backward()
                found.append(x.grad.asnumpy())
            else:
                out = fast(x)
            found.append(out.asnumpy())
            assert ("passes run earlier" in fast.explain()) == is_remembered
        half = len(found) // 2
        for one, other in zip(found[:half], found[half:], strict=True):
            np.testing.assert_array_equal(one, other)


def test_nets_with_other_prefixes_run_what_was_kept() -> None:
    x = mx.nd.random.uniform(shape=(3, 6))
    for prefix in ("kiwi_", "plum_"):
        net = nn.HybridSequential(prefix=prefix)
        with net.name_scope():
            net.add(nn.Dense(6, activation="tanh", in_units=6), nn.BatchNorm(in_channels=6))
            net.add(nn.Dense(6, in_units=6), nn.LayerNorm(in_channels=6))
        net.initialize(mx.init.Xavier())
        fast = graphopt.optimize(net)
        np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-6)
        told = fast.explain()
        is_second = prefix == "plum_"
        assert ("passes run earlier" in told) == is_second
        assert ("measured earlier" in told) == is_second
        assert ("kiwi" in told) == (not is_second)


def test_the_fastest_products_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse(TEXT)
    first = tuning.tune(graph)
    monkeypatch.setattr(tuning, "_products", lambda _graph: pytest.fail("it was made again"))
    again = tuning.tune(parse(TEXT))
    assert [*map(str, first.graphs)] == [*map(str, again.graphs)]
    assert first.plain.told == again.plain.told


def test_products_are_not_kept_if_a_pass_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Graph:
        raise GraphoptError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(SelectGemm, "run", fail)
        assert not tuning.tune(parse(TEXT)).is_whole
    assert cache.info().graphs == 0
    assert tuning.tune(parse(TEXT)).is_whole
    assert cache.info().graphs == 1


_PROCESS = """
import graphopt, mxnet as mx
net = mx.gluon.nn.Dense(4, in_units=3, activation="tanh")
net.initialize()
fast = graphopt.optimize(net)
fast(mx.nd.ones((2, 3))).wait_to_read()
is_kept = "passes run earlier" in fast.explain()
"""


def test_other_processes_run_what_was_kept(folder: Path) -> None:
    here: dict[str, Any] = {}
    exec(_PROCESS, here)
    assert not here["is_kept"]
    shutil.copytree(BRIDGE, folder / "bridge")
    env = os.environ | {"GRAPHOPT_CACHE_DIR": str(folder), "GRAPHOPT_REMEMBER": "1"}
    there = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{_PROCESS}print(is_kept)"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout == "True\n"


@dataclass(frozen=True)
class Own(Pass):
    """A pass that a user wrote."""

    name: ClassVar[str] = "own"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        cx.count("runs")
        return graph


def test_passes_of_users_always_run(net: Any) -> None:
    for _ in range(2):
        fast = graphopt.optimize(net, passes=[EliminateDeadCode(), Own()])
        fast(mx.nd.ones((3, 6))).wait_to_read()
        assert "own: 1 run" in fast.explain()
        assert "passes run earlier" not in fast.explain()
