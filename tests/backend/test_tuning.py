"""The measuring is replaced; what both forms of a graph hold is not."""

from __future__ import annotations

import pytest

from graphopt.backend import tuning
from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.backend.tuning import tune
from graphopt.ir.graph import Graph
from graphopt.ir.node import FUSED, PRODUCT
from graphopt.ir.parser import parse
from graphopt.passes import select_gemm
from graphopt.testing import assert_equivalent, run_pass


class Clock(MXNetTarget):
    """Packed products take 1 ms or more, ``dot`` 2 ms, FullyConnected 3 ms."""

    packed_ms = 1.0

    def measured_once(self, parts, measure, place=()):
        return measure()

    def times_ms(self, graphs, *, training=False):
        ops = [graph[graph.outputs[0].node].op for graph in graphs]
        return [{PRODUCT: self.packed_ms, "FullyConnected": 3.0}.get(op, 2.0) for op in ops]


class SlowPacked(Clock):
    packed_ms = 9.0


@pytest.fixture
def large() -> Graph:
    """A product that is large enough for ``dot``, and GELU behind it as a kernel."""
    graph = with_types(
        parse(
            "graph g(%x: f32[1000,100], param %w: f32[1000,100], param %b: f32[1000]) {"
            "%c = FullyConnected(%x, %w, %b) {num_hidden=1000}"
            "%t = _mul_scalar(%c) {scalar=2.0}"
            '%y = LeakyReLU(%t) {act_type="gelu"}'
            "%d = FullyConnected(%x, %w, %b) {num_hidden=1000}"
            '%z = LeakyReLU(%d) {act_type="gelu"} %s = _mul_scalar(%z) {scalar=2.0}'
            "return %y, %s }"
        )
    )
    fused = run_pass(graph, "fuse-pointwise", frozen=True).graph
    assert operators(fused) == ["FullyConnected", "FullyConnected", FUSED, FUSED]
    return fused


def operators(graph: Graph) -> list[str]:
    return sorted(node.op for node in graph if not node.is_input)


def tune_by(monkeypatch, target: type, graph: Graph):
    monkeypatch.setattr(select_gemm, "_MEASURED", {})
    monkeypatch.setattr(tuning, "MXNetTarget", target)
    return tune(graph)


def test_engines_without_packed_products_lose_nothing_by_them(monkeypatch, large) -> None:
    found = tune_by(monkeypatch, Clock, large)
    plain, packed = found.plain, found.packed
    other = tune_by(monkeypatch, SlowPacked, large)
    alone, none = other.plain, other.packed
    assert none is None
    assert packed is not None
    assert plain == alone
    # The second is followed by an activation alone, which oneDNN may compute with it.
    products = [op for op in operators(plain.graph) if op in ("FullyConnected", "dot", PRODUCT)]
    assert products == ["FullyConnected", "dot"]
    assert operators(plain.graph).count(FUSED) == 2
    assert plain.told == ("c: dot takes 2.00 ms, FullyConnected 3.00 ms",)
    assert operators(packed.graph).count(PRODUCT) == 2
    assert packed.told == tuple(f"{name}: over packed weights 1 ms, by MXNet 2 ms" for name in "cd")
    for form in (plain.graph, packed.graph):
        assert_equivalent(large, form, seeds=(0,))
