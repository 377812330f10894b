"""Bodies of ``foreach`` whose values are not matrices, or only move what others compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graphopt.api.lifting import lift
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.node import RECURRENCE
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass

mx = import_mxnet()
STEPS, BATCH, UNITS = 5, 3, 4

#: A body of ``F``, the rows of a step, the state, and parameters.
Body = Callable[[Any, Any, Any, dict[str, Any]], tuple[Any, Any]]


def dense(F: Any, x: Any, weight: Any, units: int) -> Any:
    return F.FullyConnected(x, weight, no_bias=True, num_hidden=units)


def gates_by_reshape(F: Any, x: Any, h: Any, p: Any) -> Any:
    both = dense(F, x, p["wide"], 8) + dense(F, h, p["wide_back"], 8)
    gate, new = F.split(F.reshape(both, (0, 2, -1)), num_outputs=2, axis=1, squeeze_axis=True)
    return (F.sigmoid(gate) * F.tanh(new) + 0.5 * h,) * 2


def gates_side_by_side(F: Any, x: Any, h: Any, p: Any) -> Any:
    both = F.reshape(dense(F, x, p["wide"], 8) + dense(F, h, p["wide_back"], 8), (-1, UNITS, 2))
    gate, new = (F.slice_axis(both, axis=2, begin=n, end=n + 1) for n in range(2))
    return (F.Flatten(F.sigmoid(gate) * F.tanh(new)) + 0.5 * h,) * 2


def one_more_axis(F: Any, x: Any, h: Any, p: Any) -> Any:
    new = F.squeeze(F.expand_dims(x, 1) + F.expand_dims(dense(F, h, p["square"], 4), 1), axis=1)
    return F.swapaxes(F.expand_dims(F.tanh(new), 1), 1, 2), F.tanh(new)


def a_number_for_each(F: Any, x: Any, h: Any, p: Any) -> Any:
    new = F.tanh(x + dense(F, h, p["square"], 4))
    return F.sum(new, axis=1), F.broadcast_mul(new, F.expand_dims(F.mean(h, axis=1), 1))


def softmax_of_heads(F: Any, x: Any, h: Any, p: Any) -> Any:
    heads = F.reshape(F.concat(dense(F, x, p["wide"], 8), h, dim=1), (0, 3, -1))
    shares = F.broadcast_add(F.softmax(heads, axis=-1), p["heads"])
    return shares, F.tanh(F.sum(shares, axis=1))


def gates_of_heads(F: Any, x: Any, h: Any, p: Any) -> Any:
    heads = F.reshape(F.tanh(dense(F, x, p["square"], 4) + h), (0, 2, -1))
    gate = F.expand_dims(F.slice_axis(F.sigmoid(h), axis=1, begin=0, end=2), 2)
    return (F.reshape(F.broadcast_mul(gate, heads), (0, -1)),) * 2


def normalized_heads(F: Any, x: Any, h: Any, p: Any) -> Any:
    heads = F.reshape(dense(F, x, p["wide"], 8), (0, 2, -1))
    return heads, F.tanh(F.mean(F.LayerNorm(heads, p["vector"], 0.5 * p["vector"]), axis=1) + h)


def repeated(F: Any, x: Any, h: Any, p: Any) -> Any:
    column = F.slice_axis(dense(F, h, p["square"], 4), axis=1, begin=1, end=2)
    half = F.slice_axis(x, axis=1, begin=0, end=2)
    new = F.tanh(F.repeat(column, repeats=4, axis=1) + F.tile(half, reps=(1, 2)) + 0.5 * h)
    return F.repeat(half, repeats=2, axis=1), new


def stretched(F: Any, x: Any, h: Any, p: Any) -> Any:
    row = F.broadcast_like(F.reshape(p["vector"], (1, -1)), h)
    column = F.broadcast_to(F.sum(h, axis=1, keepdims=True), shape=(0, UNITS))
    new = F.where(F.broadcast_like(column, x) > 0.1, F.tanh(x + row), 0.5 * h)
    return [row, F.reverse(x, axis=1)], dense(F, F.concat(new, row, dim=1), p["deep"], 4)


def sums_of_single_columns(F: Any, x: Any, h: Any, p: Any) -> Any:
    columns = F.expand_dims(F.slice_axis(x, axis=1, begin=0, end=2), 2)
    new = F.broadcast_mul(columns, F.sum(columns, axis=2, keepdims=True))
    return (F.tanh(F.Flatten(F.repeat(new, repeats=2, axis=1)) + h),) * 2


def best_ways(F: Any, x: Any, h: Any, p: Any) -> Any:
    ways = F.broadcast_add(F.expand_dims(h, 2), F.expand_dims(p["square"], 0))
    return F.min(ways, axis=1), F.max(ways, axis=1) + x


def all_ways(F: Any, x: Any, h: Any, p: Any) -> Any:
    ways = F.broadcast_add(F.expand_dims(h, 2), F.expand_dims(p["square"], 0))
    best = F.max(ways, axis=1, keepdims=True)
    total = F.log(F.sum(F.exp(F.broadcast_sub(ways, best)), axis=1))
    return (total + F.squeeze(best, axis=1) + x,) * 2


def ties(F: Any, x: Any, h: Any, p: Any) -> Any:
    pairs = F.reshape(F.concat(x, h, h, dim=1), (0, 3, -1))
    return F.min(pairs, axis=1), F.tanh(F.max(pairs, axis=1) + h)


BODIES: dict[Body, tuple[str, ...]] = {
    gates_by_reshape: ("wide", "wide_back"),
    gates_side_by_side: ("wide", "wide_back"),
    one_more_axis: ("square",),
    a_number_for_each: ("square",),
    softmax_of_heads: ("wide", "heads"),
    gates_of_heads: ("square",),
    normalized_heads: ("wide", "vector"),
    repeated: ("square",),
    stretched: ("vector", "deep"),
    sums_of_single_columns: (),
    best_ways: ("square",),
    all_ways: ("square",),
    ties: (),
}
SHAPES = {
    "wide": (8, UNITS),
    "wide_back": (8, UNITS),
    "square": (UNITS, UNITS),
    "deep": (UNITS, 2 * UNITS),
    "heads": (3, 1),
    "vector": (UNITS,),
    "cube": (UNITS, 2, 2),
}


class Loop(mx.gluon.HybridBlock):
    """A body applied to every row of a sequence."""

    def __init__(self, body: Body, parameters: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.body = body
        with self.name_scope():
            for name in parameters:
                setattr(self, name, self.params.get(name, shape=SHAPES[name]))

    def hybrid_forward(self, F, x, h, **given):
        emitted, last = F.contrib.foreach(lambda row, state: self.body(F, row, state, given), x, h)
        return (*emitted, last) if isinstance(emitted, list) else (emitted, last)


def imported(loop: Loop, x: tuple[int, ...], h: tuple[int, ...], mode: str) -> Result:
    """Runs the pass, and compares if it made a recurrence."""
    loop.initialize(mx.init.Uniform(0.7))
    loop.hybridize()
    loop(mx.nd.ones(x), mx.nd.ones(h))
    graph = lift(loop, shapes={"data0": x, "data1": h})
    result = run_pass(graph, "import-foreach", target=MXNetTarget(), mode=mode)
    if not result.graph.is_unchanged_from(graph):
        assert_equivalent(graph, result.graph, training=mode == "training")
    return result


def is_recurrence(result: Result) -> bool:
    return [node.op for node in result.graph].count(RECURRENCE) == 1


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("body", BODIES)
def test_a_loop(body: Body, mode: str) -> None:
    loop = Loop(body, BODIES[body])
    assert is_recurrence(imported(loop, (STEPS, BATCH, UNITS), (BATCH, UNITS), mode))


@pytest.mark.parametrize("state", [(BATCH,), (BATCH, 1, UNITS), (BATCH, 2, 2)])
def test_states_of_any_rank(state: tuple[int, ...]) -> None:
    def body(F, x, h, p):
        new = F.tanh(F.reshape_like(x, h) + 0.5 * h)
        return new, new

    data = (STEPS, *state) if len(state) == 1 else (STEPS, BATCH, UNITS)
    assert is_recurrence(imported(Loop(body), data, state, "training"))


def test_what_is_captured_may_have_any_rank() -> None:
    class Captured(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, h, row, number, shared):
            def body(step, state):
                heads = F.broadcast_mul(F.reshape(state, (0, 2, 2)) * row, shared)
                share = F.expand_dims(F.sum(state, axis=1) * number, 1)
                new = F.broadcast_mul(F.tanh(step + F.Flatten(heads)), share)
                return new, new

            return F.contrib.foreach(body, x, h)

    shapes = [(STEPS, BATCH, UNITS), (BATCH, UNITS), (BATCH, 2, 2), (BATCH,), (1, 2, 1)]
    net = Captured()
    net.hybridize()
    net(*map(mx.nd.ones, shapes))
    graph = lift(net, shapes={f"data{n}": shape for n, shape in enumerate(shapes)})
    result = run_pass(graph, "import-foreach", target=MXNetTarget(), mode="training")
    assert is_recurrence(result)
    assert_equivalent(graph, result.graph, training=True)


def across_the_batch(F: Any, x: Any, h: Any, p: Any) -> Any:
    return x, F.tanh(F.reverse(x, axis=0) + h)


def transposed(F: Any, x: Any, h: Any, p: Any) -> Any:
    return x, F.tanh(F.transpose(F.transpose(x) + F.transpose(h)))


def product_of_heads(F: Any, x: Any, h: Any, p: Any) -> Any:
    return x, F.tile(F.prod(F.reshape(x + h, (0, 2, 2)), axis=1), reps=(1, 2))


def copies_of_a_column(F: Any, x: Any, h: Any, p: Any) -> Any:
    return x, F.tile(F.slice_axis(h, axis=1, begin=0, end=1), reps=(1, UNITS))


def matrix_of_three_axes(F: Any, x: Any, h: Any, p: Any) -> Any:
    return x, F.tanh(F.Flatten(F.dot(x, p["cube"])) + h)


REFUSED: dict[Body, str] = {
    across_the_batch: "turns the batch around",
    transposed: "has no row for each sequence",
    product_of_heads: "lies in several parts",
    copies_of_a_column: "one column becomes 4",
    matrix_of_three_axes: "its matrix has 3 axes",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_stays(body: Body) -> None:
    parameters = ("cube",) if body is matrix_of_three_axes else ()
    result = imported(Loop(body, parameters), (STEPS, BATCH, UNITS), (BATCH, UNITS), "training")
    assert not is_recurrence(result)
    assert REFUSED[body] in "\n".join(map(str, result.remarks))
