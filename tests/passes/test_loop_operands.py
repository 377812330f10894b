"""What ``foreach`` runs over and hands on: numbers of rows, packed states, steps with no batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
UNITS = 4
#: Steps and sequences of calls one after the other.
SIZES = [(5, 3), (7, 3), (5, 2), (4, 1), (9, 6)]


class Loop(mx.gluon.HybridBlock):
    """A body over one sequence or two, with one state; ``wide`` and ``back`` are its parameters."""

    def __init__(self, body: Callable[..., Any], columns: int, width: int, units: int) -> None:
        super().__init__()
        self.body = body
        with self.name_scope():
            self.wide = self.params.get("wide", shape=(units, columns))
            self.back = self.params.get("back", shape=(units, width))
            self.table = self.params.get("table", shape=(7, columns))

    def hybrid_forward(self, F, h, *data, **given):
        data = data[0] if len(data) == 1 else list(data)
        outputs, last = F.contrib.foreach(
            lambda row, state: self.body(F, row, state, given), data, h
        )
        return outputs, last


def results(net: Any, block: Any, arrays: Sequence[Any]) -> list[Any]:
    """Outputs and gradients of a call, those of floats and of parameters."""
    given = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
    given[0].attach_grad()
    for parameter in block.collect_params().values():
        parameter.zero_grad()
    with mx.autograd.record():
        outputs = net(*given)
        sum((out * out).sum() + out.sum() for out in outputs).backward()
    learned = [parameter.grad() for parameter in block.collect_params().values()]
    return [found.asnumpy() for found in (*outputs, *net(*given), given[0].grad, *learned)]


def assert_equal(
    loop: Loop, arrays: Callable[[int, int], list[Any]], sizes: Sequence[tuple[int, int]] = SIZES
) -> None:
    """A loop is a recurrence, and at all sizes what it is for plain MXNet."""
    loop.initialize(mx.init.Uniform(0.7))
    fast = graphopt.optimize(loop)
    for steps, batch in sizes:
        given = arrays(steps, batch)
        for got, want in zip(results(fast, loop, given), results(loop, loop, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert "import-foreach: 1 recurrence" in fast.explain()


def dense(F: Any, x: Any, weight: Any, units: int = UNITS) -> Any:
    return F.FullyConnected(x, weight, no_bias=True, num_hidden=units)


def normal(*shape: int) -> Any:
    return np.random.default_rng(3).normal(size=shape).astype("float32")


def numbers(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(4).integers(0, 7, shape).astype(dtype)


# -- numbers of rows -----------------------------------------------------------------------


def embedded(F: Any, x: Any, h: Any, p: Any) -> Any:
    vectors = F.Embedding(x, p["table"], input_dim=7, output_dim=UNITS)
    return (F.tanh(dense(F, vectors, p["wide"]) + dense(F, h, p["back"])),) * 2


def taken(F: Any, x: Any, h: Any, p: Any) -> Any:
    vectors = F.take(p["table"], F.cast(x, "int32"))
    return (F.tanh(dense(F, vectors, p["wide"]) + dense(F, h, p["back"])),) * 2


def one_hot(F: Any, x: Any, h: Any, p: Any) -> Any:
    chosen = F.dot(F.one_hot(x, depth=7), p["table"])
    return (F.tanh(dense(F, chosen, p["wide"]) + dense(F, h, p["back"])),) * 2


def column_of_numbers(F: Any, x: Any, h: Any, p: Any) -> Any:
    return embedded(F, F.reshape(F.slice_axis(x, axis=-1, begin=1, end=2), (-1,)), h, p)


def bag_of_words(F: Any, x: Any, h: Any, p: Any) -> Any:
    vectors = F.mean(F.Embedding(x, p["table"], input_dim=7, output_dim=UNITS), axis=1)
    return (F.tanh(dense(F, vectors, p["wide"]) + dense(F, h, p["back"])),) * 2


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("body", [embedded, taken, one_hot])
def test_lookups_by_data(body: Callable[..., Any], dtype: str) -> None:
    assert_equal(
        Loop(body, UNITS, UNITS, UNITS),
        lambda steps, batch: [normal(batch, UNITS), numbers(steps, batch, dtype=dtype)],
        SIZES[:3],
    )


@pytest.mark.parametrize("body", [column_of_numbers, bag_of_words])
def test_lookups_by_several_numbers(body: Callable[..., Any]) -> None:
    assert_equal(
        Loop(body, UNITS, UNITS, UNITS),
        lambda steps, batch: [normal(batch, UNITS), numbers(steps, batch, 3)],
    )


def test_a_mask_beside_words() -> None:
    def body(F, x, h, p):
        words, mask = x
        mask = F.expand_dims(F.cast(mask, "float32"), 1)
        new, _ = embedded(F, words, h, p)
        return new, F.broadcast_mul(mask, new) + F.broadcast_mul(1 - mask, h)

    def arrays(steps, batch):
        mask = (numbers(steps, batch) > 2).astype("int32")
        return [normal(batch, UNITS), numbers(steps, batch), mask]

    assert_equal(Loop(body, UNITS, UNITS, UNITS), arrays)


def test_lookups_by_states_stay() -> None:
    def body(F, x, h, p):
        number = F.argmax(h, axis=1)
        return (x + F.Embedding(number, p["table"], input_dim=7, output_dim=UNITS),) * 2

    loop = Loop(body, UNITS, UNITS, UNITS)
    loop.initialize()
    fast = graphopt.optimize(loop)
    fast(mx.nd.ones((3, UNITS)), mx.nd.ones((5, 3, UNITS)))
    assert "a recurrence cannot compute it" in fast.explain()


def test_lookups_that_take_much_memory_stay() -> None:
    depth = (257 << 20) // (8 * 8 * 4)

    def body(F, x, h, p):
        chosen = F.sum(F.one_hot(x, depth=depth), axis=1, keepdims=True)
        return (F.broadcast_add(0.5 * h, chosen),) * 2

    given = [mx.nd.ones((8, UNITS)), mx.nd.ones((8, 8))]
    loop = Loop(body, UNITS, UNITS, UNITS)
    loop.initialize()
    fast = graphopt.optimize(loop)
    for got, want in zip(fast(*given), loop(*given), strict=True):
        np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-6)
    assert "of all steps at once it takes 257 MiB, of 256 at most" in fast.explain()


# -- states made of parts ------------------------------------------------------------------


def packed_lstm(F: Any, x: Any, state: Any, p: Any) -> Any:
    h, c = F.split(state, num_outputs=2, axis=1)
    back = F.slice_axis(p["back"], axis=1, begin=0, end=UNITS)
    gates = dense(F, x, p["wide"], 4 * UNITS) + dense(F, h, back, 4 * UNITS)
    i, f, g, o = F.split(gates, num_outputs=4, axis=1)
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(c)
    return h, F.concat(h, c, dim=1)


def delayed(F: Any, x: Any, state: Any, p: Any) -> Any:
    new = F.tanh(dense(F, x, p["wide"]) + dense(F, state, p["back"]))
    return new, F.concat(F.slice_axis(state, axis=1, begin=UNITS, end=None), new, dim=1)


def read_across_parts(F: Any, x: Any, state: Any, p: Any) -> Any:
    whole = F.tanh(state)
    new = F.concat(dense(F, x, p["wide"]), F.slice_axis(whole, axis=1, begin=2, end=4), dim=1)
    return F.sum(whole, axis=1, keepdims=True), 0.5 * state + new


@pytest.mark.parametrize(
    ("body", "width", "units"),
    [
        (packed_lstm, 2 * UNITS, 4 * UNITS),
        (delayed, 3 * UNITS, UNITS),
        (read_across_parts, UNITS + 2, UNITS),
    ],
)
def test_a_state_of_parts(body: Callable[..., Any], width: int, units: int) -> None:
    assert_equal(
        Loop(body, UNITS, width, units),
        lambda steps, batch: [normal(batch, width), normal(steps, batch, UNITS)],
    )


def test_a_stack_of_states() -> None:
    def body(F, x, state, p):
        low, high = F.split(state, num_outputs=2, axis=1, squeeze_axis=True)
        low = F.tanh(dense(F, x, p["wide"]) + low)
        high = F.tanh(dense(F, low, p["back"]) + high)
        return high, F.stack(low, high, axis=1)

    assert_equal(
        Loop(body, UNITS, UNITS, UNITS),
        lambda steps, batch: [normal(batch, 2, UNITS), normal(steps, batch, UNITS)],
    )


def test_a_state_of_too_many_parts_stays() -> None:
    def body(F, x, state, p):
        new = F.sum(x, axis=1, keepdims=True)
        return new, F.concat(F.slice_axis(state, axis=1, begin=1, end=None), new, dim=1)

    loop = Loop(body, UNITS, UNITS, UNITS)
    loop.initialize()
    fast = graphopt.optimize(loop)
    fast(mx.nd.ones((3, 50)), mx.nd.ones((5, 3, UNITS)))
    assert "a state made of several parts" in fast.explain()


# -- steps with no batch -------------------------------------------------------------------


def vectors(F: Any, x: Any, h: Any, p: Any) -> Any:
    return (F.tanh(F.dot(p["wide"], x) + F.dot(h, p["back"])),) * 2


def rows(F: Any, x: Any, h: Any, p: Any) -> Any:
    new = dense(F, F.expand_dims(x, 0), p["wide"]) + dense(F, F.expand_dims(h, 0), p["back"])
    return (F.softmax(F.reshape(new, (-1,))),) * 2


@pytest.mark.parametrize("body", [vectors, rows])
def test_vectors_as_steps(body: Callable[..., Any]) -> None:
    assert_equal(
        Loop(body, UNITS, UNITS, UNITS),
        lambda steps, batch: [normal(UNITS), normal(steps, UNITS)],
        [(5, 1), (8, 1), (1, 1)],
    )


def test_numbers_as_steps() -> None:
    def body(F, x, h, p):
        new = 0.9 * h + x[0] * x[1]
        return new, new

    assert_equal(
        Loop(body, UNITS, UNITS, UNITS),
        lambda steps, batch: [normal(batch), normal(steps, batch), normal(steps, batch)],
    )
