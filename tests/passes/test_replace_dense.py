"""replace-dense: the measuring is replaced, what it decides is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.ir.graph import Graph
from graphopt.ir.node import DENSE
from graphopt.ir.parser import parse
from graphopt.passes.replace_dense import ReplaceDense
from graphopt.testing import assert_equivalent, run_pass

SMALL = "replace-dense{min_mega_macs=0}"


class Clock(MXNetTarget):
    """A target by whose means a layer takes as long as told; MXNet's takes 1 ms."""

    def __init__(self, ms: float = 0.5, *, means: str | None = "in pairs") -> None:
        self.ms = ms
        self.means = means
        self.timed = 0

    def dense_means(self) -> str | None:
        return self.means

    def measured_once(self, parts, measure, place=()):
        return measure()

    def times_ms(self, graphs: Sequence[Graph], *, training: bool = False) -> list[float]:
        assert training
        self.timed += 1
        return [self.ms if any(n.op == DENSE for n in graph) else 1.0 for graph in graphs]


def net(x: str = "f32[8,5,4]", attrs: str = "flatten=False", tail: str = "return %c") -> Graph:
    fc = f"%c = FullyConnected(%x, %w, %b) {{{attrs}, num_hidden=6}}"
    return with_types(parse(f"graph g(%x: {x}, param %w: ?, param %b: ?) {{ {fc} {tail} }}"))


def replaced(graph: Graph) -> int:
    return sum(node.op == DENSE for node in graph)


def test_example(example):
    before, after = example(ReplaceDense)
    result = run_pass(before, "replace-dense", target=Clock())
    assert result.graph == after
    assert_equivalent(before, result.graph, seeds=(0,))
    assert [r.message for r in result.remarks] == ["in pairs 0.5 ms, by MXNet 1 ms"]


@pytest.mark.parametrize(
    ("x", "attrs"),
    [
        ("f32[8,5,4]", "flatten=False"),
        ("f32[40,4]", "flatten=True"),
        ("f32[40,2,3]", "flatten=True"),
        ("f32[33,4]", "no_bias=False"),
    ],
)
def test_equivalent_and_put_back(x: str, attrs: str) -> None:
    before = net(x, attrs)
    after = run_pass(before, SMALL, target=Clock()).graph
    assert replaced(after) == 1
    assert_equivalent(before, after)
    assert unfuse(after) == before


def test_the_faster_one_is_taken_and_equal_layers_are_timed_together() -> None:
    clock = Clock(0.96)
    result = run_pass(net(), SMALL, target=clock)
    assert replaced(result.graph) == 0
    assert "in pairs 0.96 ms, by MXNet 1 ms" in result.remarks[0].message
    assert replaced(run_pass(net(), SMALL, target=Clock(0.9)).graph) == 1


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (net("f32[31,4]"), "31x4 by 4x6 is too small"),
        (net("f64[40,4]"), "multiplies float64"),
        (parse(
            "graph g(%x: ?, param %w: ?) {%c = FullyConnected(%x, %w) {num_hidden=6, no_bias=True}"
            " return %c }"
        ), "shape or dtype is not known"),
    ],
)  # fmt: skip
def test_left_alone(graph: Graph, why: str) -> None:
    clock = Clock()
    result = run_pass(graph, SMALL, target=clock)
    assert replaced(result.graph) == 0
    assert why in result.remarks[0].message
    assert clock.timed == 0


def test_small_layers_and_processors_without_such_means_are_left_alone() -> None:
    assert "too small" in run_pass(net(), "replace-dense", target=Clock()).remarks[0].message
    result = run_pass(net(), SMALL, target=Clock(means=None))
    assert replaced(result.graph) == 0
    assert "nothing faster" in result.remarks[0].message


@pytest.mark.parametrize("more", [{"precise": True}, {"device": "gpu"}])
def test_refused(more: dict) -> None:
    result = run_pass(net(), SMALL, target=Clock(), **more)
    assert replaced(result.graph) == 0
