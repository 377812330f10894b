"""graphopt.nn's recurrent layers over sequences of different lengths."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.rnn_support import (
    BATCH,
    KINDS,
    LENGTHS,
    STEPS,
    data,
    flat,
    learn,
    near,
    noise,
    pair,
    states_of,
)
from tests.tiers import one_of

mx = import_mxnet()
gluon = mx.gluon


def one_by_one(
    layer: Any, x: Any, states: list[Any] | None, lengths: Any = LENGTHS
) -> list[tuple[Any, list[Any]]]:
    """Every sequence alone, through Gluon: its outputs, its final states."""
    axis = layer._layout.find("T")
    found = []
    for row, length in enumerate(lengths):
        begin = layer.begin_state(len(lengths), dtype=x.dtype) if states is None else states
        own = [mx.nd.slice_axis(s, axis=1, begin=row, end=row + 1) for s in begin]
        if not length:
            found.append((None, own))
            continue
        alone = mx.nd.slice_axis(x, axis=1 - axis, begin=row, end=row + 1)
        cut = mx.nd.slice_axis(alone, axis=axis, begin=0, end=length)
        found.append(layer(cut, own))
    return found


def put_together(layer: Any, x: Any, found: list[tuple[Any, list[Any]]]) -> list[Any]:
    """Outputs with zeros behind the ends, and final states, as one call has them."""
    axis = layer._layout.find("T")
    outputs = []
    for out, _ in found:
        missing = x.shape[axis] - (0 if out is None else out.shape[axis])
        shape = [1, 1, layer._dir * layer._hidden_size]
        shape[axis] = missing
        parts = ([] if out is None else [out]) + (
            [mx.nd.zeros(shape, dtype=x.dtype)] if missing else []
        )
        outputs.append(mx.nd.concat(*parts, dim=axis))
    states = zip(*(own for _, own in found), strict=True)
    return [mx.nd.concat(*outputs, dim=1 - axis), *(mx.nd.concat(*s, dim=1) for s in states)]


class OneByOne:
    """Gluon's layer as if it knew lengths."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def collect_params(self) -> Any:
        return self.layer.collect_params()

    def __call__(self, x: Any, states: Any, lengths: Any) -> Any:
        ends = [int(n) for n in lengths.asnumpy()]
        found = put_together(self.layer, x, one_by_one(self.layer, x, states, ends))
        return found[0] if states is None else found


@pytest.mark.parametrize(
    ("kind", "bidirectional", "given"),
    one_of(5, itertools.product(KINDS, [False, True], [False, True])),
)
def test_every_sequence_is_as_if_alone(kind: str, bidirectional: bool, given: bool) -> None:
    for dtype, layers, layout in [("int32", 1, "TNC"), ("float32", 2, "NTC")]:
        theirs, mine = pair(kind, num_layers=layers, layout=layout, bidirectional=bidirectional)
        x, lengths = data(mine), mx.nd.array(LENGTHS, dtype=dtype)
        states = states_of(mine) if given else None
        reads = [x, *(states or [])]
        want = learn(OneByOne(theirs), reads, x, states, lengths)
        found = learn(mine, reads, x, states, lengths)
        for got, right in zip(found, want, strict=True):
            for n, (g, w) in enumerate(zip(got, right, strict=True)):
                near(g, w, 1e-5, f"array {n}")
        axis = mine._layout.find("T")
        for row, length in enumerate(LENGTHS):
            for array in (found[0][0], found[1][0]):  # outputs, gradients of inputs
                assert not np.take(np.moveaxis(array, axis, 0), row, axis=1)[length:].any()
        for got, right in zip(flat(mine(x, states, lengths)), want[0], strict=True):
            near(got, right)


def test_dtypes_of_lengths() -> None:
    _, mine = pair("LSTM")
    x = data(mine)
    found = []
    for dtype in ("int32", "int64", "float32", "float64"):
        outputs, gradients = learn(mine, [x], x, None, mx.nd.array(LENGTHS, dtype=dtype))
        found.append([*outputs, *gradients])
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_full_lengths_are_none(bidirectional: bool) -> None:
    _, mine = pair("GRU", bidirectional=bidirectional)
    x, states = data(mine), states_of(mine)
    reads = [x, *states]
    plain = learn(mine, reads, x, states)
    full = learn(mine, reads, x, states, mx.nd.full((BATCH,), STEPS))
    for got, want in zip([*full[0], *full[1]], [*plain[0], *plain[1]], strict=True):
        near(got, want, 1e-6)
    for got, want in zip(flat(mine(x, states)), plain[0], strict=True):
        near(got, want, 1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_of_zero(kind: str, bidirectional: bool) -> None:
    _, mine = pair(kind, bidirectional=bidirectional)
    x, states, lengths = data(mine), states_of(mine), mx.nd.zeros(BATCH, dtype="int32")
    outputs, gradients = learn(mine, [x, *states], x, states, lengths)
    assert not outputs[0].any()
    for n, state in enumerate(states):
        np.testing.assert_array_equal(outputs[1 + n], state.asnumpy())
        head = noise(*state.shape, seed=9).asnumpy()
        np.testing.assert_array_equal(gradients[1 + n], head)
    for gradient in (gradients[0], *gradients[1 + len(states) :]):
        assert not gradient.any()


def test_what_lies_behind_the_end_does_not_matter() -> None:
    _, mine = pair("LSTM", bidirectional=True)
    x, lengths = data(mine), mx.nd.array(LENGTHS)
    want = learn(mine, [x], x, None, lengths)
    spoiled = x.asnumpy()
    for row, length in enumerate(LENGTHS):
        spoiled[length:, row] = np.nan
    y = mx.nd.array(spoiled)
    found = learn(mine, [y], y, None, lengths)
    for got, right in zip([*found[0], *found[1]], [*want[0], *want[1]], strict=True):
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "states"])
def test_lengths_hybridized(given: bool) -> None:
    _, mine = pair("LSTM", num_layers=2, bidirectional=True)
    x, lengths = data(mine), mx.nd.array(LENGTHS)
    states = states_of(mine) if given else None
    reads = [x, *(states or [])]
    want = learn(mine, reads, x, states, lengths)
    mine.hybridize()
    found = learn(mine, reads, x, states, lengths)
    for got, right in zip([*found[0], *found[1]], [*want[0], *want[1]], strict=True):
        near(got, right)


class Encoder(gluon.HybridBlock):
    """A net that hands lengths on."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def hybrid_forward(self, F: Any, x: Any, lengths: Any) -> Any:
        return F.tanh(self.layer(x, None, lengths))


@pytest.mark.parametrize("how", ["hybridize", "optimize", "inference"])
def test_lengths_inside_of_a_net(how: str) -> None:
    _, mine = pair("GRU", num_layers=2, bidirectional=True)
    net = Encoder(mine)
    x, lengths = data(mine), mx.nd.array(LENGTHS)
    want = learn(net, [x], x, lengths)
    if how == "inference":
        near(graphopt.optimize(net, mode="inference")(x, lengths), want[0][0])
        return
    if how == "optimize":
        net = graphopt.optimize(net)
    else:
        net.hybridize()
    found = learn(net, [x], x, lengths)
    for got, right in zip([*found[0], *found[1]], [*want[0], *want[1]], strict=True):
        near(got, right)


@pytest.mark.parametrize("kind", KINDS)
def test_views_of_layers_make_their_states(kind: str) -> None:
    """Once, as the layer that is a view is called once."""
    layer = getattr(graphopt.nn, kind)(3, input_size=4)
    layer.initialize()
    x = mx.nd.random.uniform(shape=(5, 2, 4))
    lengths = mx.nd.array([5, 2])
    want = layer(x, sequence_length=lengths).asnumpy()
    fast = graphopt.optimize(layer)
    for _ in range(3):
        np.testing.assert_allclose(fast(x, sequence_length=lengths).asnumpy(), want, rtol=1e-5)
        np.testing.assert_allclose(fast(x, None, lengths).asnumpy(), want, rtol=1e-5)
    states = layer.begin_state(2)
    given = states if len(states) > 1 else states[0]  # one may be without a list
    np.testing.assert_allclose(fast(x, given, lengths)[0].asnumpy(), want, rtol=1e-5)
    with mx.autograd.record():
        loss = fast(x, sequence_length=lengths).sum()
    loss.backward()
    assert np.abs(layer.l0_h2h_weight.grad().asnumpy()).sum() > 0
