"""Layers of ``graphopt.nn`` under ``npx.set_np()``: what they compute of arrays of ``mx.nd``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn

_PARENTS = np.array([2, 2, 4, 4, -1, -1], np.int32)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    mx.npx.reset_np()


def _lstm(array: Any) -> tuple[Any, Any]:
    layer = graphopt.nn.LSTM(4, 2, "NTC", input_size=5, bidirectional=True, prefix="a_")
    lengths = array(np.array([6, 2, 4], np.int32), dtype="int32")
    return layer, lambda: (array(_numbers((3, 6, 5))), None, lengths)


def _gru(array: Any) -> tuple[Any, Any]:
    layer = graphopt.nn.GRU(4, prefix="a_")
    states, lengths = array(_numbers((1, 3, 4))), array(np.array([6, 0, 4], np.float32))
    return layer, lambda: (array(_numbers((6, 3, 5))), states, lengths)


def _child_sum(array: Any) -> tuple[Any, Any]:
    layer = graphopt.nn.ChildSumTreeLSTM(4, prefix="a_")
    return layer, lambda: (array(_numbers((6, 5))), array(_PARENTS, dtype="int32"))


def _nary(array: Any) -> tuple[Any, Any]:
    layer = graphopt.nn.NaryTreeLSTM(4, 5, prefix="a_")
    return layer, lambda: (array(_numbers((6, 5))), array(_PARENTS, dtype="int32"))


def _numbers(shape: tuple[int, ...]) -> Any:
    return np.random.RandomState(sum(shape)).uniform(-1, 1, shape).astype("float32")


@pytest.mark.parametrize("how", ["plain", "hybridized", "optimized"])
@pytest.mark.parametrize("make", [_lstm, _gru, _child_sum, _nary])
def test_layers_compute_the_same(make: Callable[[Any], Any], how: str) -> None:
    want = _outputs_and_gradients(make, how, mx.nd.array, mx.nd.NDArray)
    mx.npx.set_np()
    found = _outputs_and_gradients(make, how, mx.np.array, mx.np.ndarray)
    assert len(found) == len(want)
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_array_equal(got, expected)


def _outputs_and_gradients(make: Any, how: str, array: Any, kind: type) -> list[Any]:
    layer, arguments = make(array)
    layer.initialize()
    first, *others = arguments()
    _flat(layer(first, *others))  # which tells shapes
    for parameter in layer.collect_params().values():
        parameter.set_data(array(_numbers(parameter.shape)))
    if how == "hybridized":
        layer.hybridize()
    called = graphopt.optimize(layer) if how == "optimized" else layer
    first.attach_grad()
    with mx.autograd.record():
        outputs = _flat(called(first, *others))
        loss = sum((output * output).sum() for output in outputs)
    loss.backward()
    assert {type(output) for output in outputs} == {kind}
    gradients = [p.grad() for p in layer.collect_params().values()]
    assert all(np.abs(gradient.asnumpy()).sum() > 0 for gradient in gradients)
    found = [*outputs, first.grad, *gradients, *_flat(called(first, *others))]
    return [each.asnumpy() for each in found]


def _flat(nested: Any) -> list[Any]:
    if isinstance(nested, (list, tuple)):
        return [array for item in nested for array in _flat(item)]
    return [nested]


class _Message(mx.gluon.HybridBlock):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, in_units=4)

    def hybrid_forward(self, F: Any, x: Any, state: Any) -> Any:
        return F.np.tanh(self.dense(state)) * x


@pytest.mark.parametrize("has_words", [False, True])
@pytest.mark.parametrize("hybridizes", [False, True])
def test_messages_of_the_users_are_written_for_numpy(hybridizes: bool, has_words: bool) -> None:
    mx.npx.set_np()
    embedding = nn.Embedding(10, 4) if has_words else None
    message = _Message()
    layer = graphopt.nn.Recurrence(
        message, "sum", lambda F, x, below: F.npx.sigmoid(below + x), embedding=embedding
    )
    layer.initialize(mx.init.Uniform(0.5))
    if hybridizes:
        layer.hybridize()
    given = np.array([1, 7, 3, 9, 1, 0], np.int32) if has_words else _numbers((6, 4))
    found = layer(mx.np.array(given, dtype=given.dtype), mx.np.array(_PARENTS, dtype="int32"))
    weight, bias = (p.data().asnumpy() for p in (message.dense.weight, message.dense.bias))
    rows = given if embedding is None else embedding.weight.data().asnumpy()[given]
    states = np.zeros((6, 4))
    for node, row in enumerate(rows):
        children = [child for child in range(node) if _PARENTS[child] == node]
        below = sum((np.tanh(states[child] @ weight.T + bias) * row for child in children), 0.0)
        states[node] = 1 / (1 + np.exp(-(below + row)))
    np.testing.assert_allclose(found.asnumpy(), states, rtol=1e-5)


def test_a_graph_without_edges_has_states_of_its_rows() -> None:
    mx.npx.set_np()
    layer = graphopt.nn.NaryTreeLSTM(4, 5)
    layer.initialize()
    x = mx.np.array(_numbers((6, 5)))
    found = layer(x, mx.np.zeros((0, 2), dtype="int32"))
    want = layer(x, mx.np.full((6,), -1, dtype="int32"))
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_array_equal(got.asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("is_beside_others", [False, True])
def test_layers_of_mxnet_at_any_size(layout: str, is_beside_others: bool) -> None:
    """Their default states have a batch of 0, which here is none at all."""
    mx.npx.set_np()
    net = mx.gluon.rnn.LSTM(3, layout=layout, input_size=2)
    if is_beside_others:
        layer, net = net, mx.gluon.nn.HybridSequential()
        net.add(layer, mx.gluon.nn.Dense(4, flatten=False, in_units=3))
    net.initialize(mx.init.Uniform(0.5))
    fast = graphopt.optimize(net)
    for shape in ((1, 8, 2), (4, 8, 2), (8, 8, 2), (2, 8, 2), (8, 3, 2), (5, 8, 2)):
        x = mx.np.random.uniform(size=shape)
        np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-6)
