"""What steps compute, as ``foreach`` has them and as unrolled cells do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphopt
from graphopt.api.lifting import lift
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE
from graphopt.testing import assert_equivalent, run_pass

mx = import_mxnet()
STEPS, BATCH, UNITS = 6, 3, 4


def gate_of_all(F: Any, x: Any, h: Any, p: dict[str, Any]) -> Any:
    both = F.FullyConnected(x, p["one_more"], no_bias=True, num_hidden=UNITS + 1)
    both = both + F.FullyConnected(h, p["one_more_back"], no_bias=True, num_hidden=UNITS + 1)
    gate = F.sigmoid(F.slice_axis(both, axis=1, begin=0, end=1))
    new = F.tanh(F.slice_axis(both, axis=1, begin=1, end=None))
    return F.broadcast_mul(gate, new) + F.broadcast_mul(1 - gate, h)


def last_column_for_all(F: Any, x: Any, h: Any, p: dict[str, Any]) -> Any:
    seen = F.tanh(F.FullyConnected(x, p["square"], no_bias=True, num_hidden=UNITS) + h)
    return F.broadcast_mul(seen, F.slice_axis(seen, axis=1, begin=UNITS - 1, end=UNITS))


def products_of_two_widths(F: Any, x: Any, h: Any, p: dict[str, Any]) -> Any:
    wide = F.FullyConnected(x, p["square"], no_bias=True, num_hidden=UNITS)
    return F.tanh(F.broadcast_add(wide, F.FullyConnected(h, p["row"], no_bias=True, num_hidden=1)))


def column_by_its_own_sum(F: Any, x: Any, h: Any, p: dict[str, Any]) -> Any:
    column = F.slice_axis(x, axis=1, begin=0, end=1)
    scale = F.broadcast_mul(column, F.sum(column, axis=1, keepdims=True))
    seen = F.FullyConnected(h, p["square"], no_bias=True, num_hidden=UNITS)
    return F.tanh(seen + F.broadcast_mul(scale, x))


def column_by_its_own_softmax(F: Any, x: Any, h: Any, p: dict[str, Any]) -> Any:
    column = F.slice_axis(x, axis=1, begin=0, end=1)
    seen = F.FullyConnected(h, p["square"], no_bias=True, num_hidden=UNITS)
    return F.tanh(seen + F.broadcast_mul(column * F.softmax(column, axis=1), x))


def scaled_weight(F: Any, x: Any, h: Any, p: dict[str, Any]) -> Any:
    seen = F.FullyConnected(x, 0.5 * p["square"], no_bias=True, num_hidden=UNITS)
    return F.tanh(seen + F.dot(h, F.transpose(F.tanh(p["square"]))))


def row_in_another_shape(F: Any, x: Any, h: Any, p: dict[str, Any]) -> Any:
    seen = F.FullyConnected(x, p["square"], no_bias=True, num_hidden=UNITS)
    return F.tanh(seen + F.broadcast_mul(h, F.sigmoid(F.reshape(p["vector"], (1, -1)))))


def gemm2(F: Any, x: Any, h: Any, p: dict[str, Any]) -> Any:
    return F.tanh(F.linalg.gemm2(x, p["square"]) + F.linalg.gemm2(h, p["square"], transpose_b=True))


#: Bodies, and the parameters that they read.
BODIES: dict[Callable[..., Any], tuple[str, ...]] = {
    gate_of_all: ("one_more", "one_more_back"),
    last_column_for_all: ("square",),
    products_of_two_widths: ("square", "row"),
    column_by_its_own_sum: ("square",),
    column_by_its_own_softmax: ("square",),
    scaled_weight: ("square",),
    row_in_another_shape: ("square", "vector"),
    gemm2: ("square",),
}
SHAPES = {
    "one_more": (UNITS + 1, UNITS),
    "one_more_back": (UNITS + 1, UNITS),
    "square": (UNITS, UNITS),
    "row": (1, UNITS),
    "vector": (UNITS,),
}


class Steps(mx.gluon.HybridBlock):
    """A body applied to every row of a sequence."""

    def __init__(self, body: Callable[..., Any], unrolled: bool) -> None:
        super().__init__()
        self.body, self.unrolled = body, unrolled
        with self.name_scope():
            for name in BODIES[body]:
                setattr(self, name, self.params.get(name, shape=SHAPES[name]))

    def hybrid_forward(self, F, x, h, **given):
        if not self.unrolled:
            outputs, h = F.contrib.foreach(
                lambda row, state: (self.body(F, row, state, given),) * 2, x, h
            )
            return outputs, h
        rows = F.split(x, num_outputs=STEPS, axis=0, squeeze_axis=True)
        outputs = []
        for step in range(STEPS):
            h = self.body(F, rows[step], h, given)
            outputs.append(h)
        return F.stack(*outputs, axis=0), h


def traced(net: Any, *shapes: tuple[int, ...]) -> Graph:
    net.initialize(mx.init.Uniform(0.7))
    net.hybridize()
    net(*map(mx.nd.ones, shapes))
    names = ["data"] if len(shapes) == 1 else [f"data{n}" for n in range(len(shapes))]
    return lift(net, shapes=dict(zip(names, shapes, strict=True)))


def recurrences(graph: Graph, passes: str, mode: str) -> int:
    """Runs passes and compares with the graph; returns how many recurrences they made."""
    result = run_pass(graph, passes, target=MXNetTarget(), mode=mode)
    assert_equivalent(graph, result.graph, training=mode == "training")
    return sum(node.op == RECURRENCE for node in result.graph)


#: Kernels of several columns would reduce one of them as often as it is stretched.
REDUCING = (column_by_its_own_sum, column_by_its_own_softmax)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("body", REDUCING)
def test_single_columns_that_are_reduced(body: Callable[..., Any], mode: str) -> None:
    for passes in ("import-foreach", "reroll-recurrence"):
        is_unrolled = passes == "reroll-recurrence"
        graph = traced(Steps(body, is_unrolled), (STEPS, BATCH, UNITS), (BATCH, UNITS))
        recurrences(graph, f"{passes},eliminate-dead-code", mode)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("body", [body for body in BODIES if body not in REDUCING])
def test_a_loop(body: Callable[..., Any], mode: str) -> None:
    graph = traced(Steps(body, unrolled=False), (STEPS, BATCH, UNITS), (BATCH, UNITS))
    assert recurrences(graph, "import-foreach", mode) == 1


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("body", [gate_of_all, products_of_two_widths])
def test_unrolled(body: Callable[..., Any], mode: str) -> None:
    graph = traced(Steps(body, unrolled=True), (STEPS, BATCH, UNITS), (BATCH, UNITS))
    assert recurrences(graph, "reroll-recurrence,eliminate-dead-code", mode) == 1


def test_what_a_loop_hands_on_is_hoisted_too() -> None:
    class Handing(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, h, w):
            def body(row, state):
                return [row + state, F.exp(w)], F.tanh(row + state) * F.exp(w)

            (sums, same), last = F.contrib.foreach(body, x, h)
            return sums, same, last

    shapes = ((STEPS, BATCH, UNITS), (BATCH, UNITS), (BATCH, UNITS))
    graph = traced(Handing(), *shapes)
    assert recurrences(graph, "import-foreach", "training") == 1


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_what_a_loop_emits_may_have_parts(mode: str) -> None:
    class Emitting(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, h):
            def body(row, state):
                new = F.tanh(row + 0.5 * state)
                whole = F.concat(F.concat(new, state, dim=1), F.sigmoid(row), dim=1)
                return [whole, new], new

            (whole, alone), last = F.contrib.foreach(body, x, h)
            return F.reverse(whole, axis=2), alone, last

    graph = traced(Emitting(), (STEPS, BATCH, UNITS), (BATCH, UNITS))
    assert recurrences(graph, "import-foreach", mode) == 1


class Dropping(mx.gluon.HybridBlock):
    """A loop that drops of what it emits: for each sequence, and the same for all."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def hybrid_forward(self, F, x, h):
        def body(row, state):
            new = F.Dropout(row, p=1e-12) + 0.5 * state
            apart, alike = F.Dropout(new, p=self.rate), F.Dropout(new, p=self.rate, axes=(0,))
            return [apart, alike], new

        (apart, alike), last = F.contrib.foreach(body, x, h)
        return apart, alike, last


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_loop_that_drops_nothing(mode: str) -> None:
    graph = traced(Dropping(1e-12), (STEPS, BATCH, UNITS), (BATCH, UNITS))
    assert recurrences(graph, "import-foreach", mode) == 1


def test_a_loop_draws_for_each_step() -> None:
    fast = graphopt.optimize(Dropping(0.5))
    x = mx.nd.ones((STEPS, BATCH, 50))
    with mx.autograd.train_mode():
        results = [found.asnumpy() for found in fast(x, mx.nd.zeros((BATCH, 50)))]
    assert "1 recurrence" in fast.explain()
    apart, alike = (found == 0 for found in results[:2])
    assert 0.3 < apart.mean() < 0.7
    assert (alike == alike[:, :1]).all()
    assert not (apart == apart[:, :1]).all()
    for dropped in (apart, alike):
        assert not (dropped == dropped[:1]).all()


class VariationalGru(mx.gluon.HybridBlock):
    """A cell whose state has two readers with a mask each, the same ones in all steps."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            inner = mx.gluon.rnn.GRUCell(UNITS, input_size=UNITS)
            self.cell = mx.gluon.contrib.rnn.VariationalDropoutCell(
                inner, drop_states=0.2, drop_outputs=0.3
            )

    def hybrid_forward(self, F, x):
        outputs, states = self.cell.unroll(STEPS, x, layout="TNC", merge_outputs=True)
        return outputs, states[0]


def test_masks_of_all_steps() -> None:
    graph = traced(VariationalGru(), (STEPS, BATCH, UNITS))
    result = run_pass(graph, "reroll-recurrence", target=MXNetTarget(), mode="training")
    assert sum(node.op == RECURRENCE for node in result.graph) == 1
