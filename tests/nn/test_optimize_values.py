"""Optimized views of Gluon Blocks compute what the Block does, whatever goes in."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.optimize_support import image, same, small_cnn

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


@pytest.mark.parametrize("mode", ["auto", "training", "inference"])
def test_outputs_are_those_of_the_plain_net(mode: str) -> None:
    net = small_cnn()
    x = image()
    if mode == "training":
        with autograd.train_mode():
            want = net(x)
    else:
        want = net(x)
    fast = graphopt.optimize(net, mode=mode)
    with autograd.train_mode() if mode == "training" else autograd.predict_mode():
        same(fast(x), want)
        same(fast(x), want)


def test_several_inputs_nested_and_none() -> None:
    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, pair, mask=None):
            y = F.broadcast_add(x, pair[0]) * pair[1]
            return y if mask is None else y * mask

    net = Net()
    fast = graphopt.optimize(net)
    a, b = mx.nd.ones((2, 3)), mx.nd.ones((2, 3)) * 2
    same(fast(a, [a, b]), net(a, [a, b]))
    same(fast(a, [a, b], b), net(a, [a, b], b))
    same(fast(a, [a, b], None), net(a, [a, b], None))


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_recurrent_layers_with_states(mode: str) -> None:
    net = mx.gluon.rnn.LSTM(5, num_layers=2)
    net.initialize()
    fast = graphopt.optimize(net, mode=mode)
    x = mx.nd.random.normal(shape=(4, 2, 3))
    same(fast(x), net(x))
    states = net.begin_state(batch_size=2)
    want, want_states = net(x, states)
    got, got_states = fast(x, states)
    same(got, want)
    for a, b in zip(got_states, want_states, strict=True):
        same(a, b)


def test_inside_a_parent_hybridized_or_not() -> None:
    net = small_cnn()
    x = image()
    net(x)
    parent = nn.HybridSequential()
    parent.add(graphopt.optimize(net), nn.Dense(2))
    parent[1].initialize()
    want = parent(x)
    parent.hybridize()
    same(parent(x), want)


def test_dropout_is_random_in_training_and_gone_in_inference() -> None:
    fast = graphopt.optimize(small_cnn(dropout=0.5))
    x = image()
    same(fast(x), fast(x))
    with autograd.record():
        a, b = fast(x), fast(x)
    assert not np.allclose(a.asnumpy(), b.asnumpy())


def test_several_contexts() -> None:
    net = nn.Dense(3)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    fast = graphopt.optimize(net)
    for ctx in (mx.cpu(0), mx.cpu(1)):
        x = mx.nd.ones((2, 4), ctx=ctx)
        same(fast(x), net(x))
        assert fast(x).ctx == ctx


def test_integer_and_half_inputs() -> None:
    net = nn.HybridSequential()
    net.add(nn.Embedding(10, 4), nn.Dense(2))
    net.initialize()
    fast = graphopt.optimize(net)
    for dtype in ("int32", "float32"):
        x = mx.nd.array([[1, 2], [3, 4]], dtype=dtype)
        same(fast(x), net(x))


def test_an_already_hybridized_net() -> None:
    net = small_cnn()
    net.hybridize(static_alloc=True)
    x = image()
    want = net(x)
    same(graphopt.optimize(net)(x), want)
    same(net(x), want)


def test_outputs_are_not_overwritten_by_later_calls() -> None:
    for mode in ("auto", "inference"):
        fast = graphopt.optimize(small_cnn(), mode=mode)
        first = fast(image())
        kept = first.asnumpy().copy()
        fast(image())
        np.testing.assert_array_equal(first.asnumpy(), kept)


def test_batches_in_shared_memory() -> None:
    """As DataLoader's workers bring them; a hybridized net would refuse them."""
    net = mx.gluon.nn.Dense(4, in_units=3)
    net.initialize()
    x = mx.nd.random.normal(shape=(2, 3))
    shared = x.as_in_context(mx.Context("cpu_shared", 0))
    fast = graphopt.optimize(net)
    assert np.allclose(fast(shared).asnumpy(), net(x).asnumpy(), rtol=1e-5)
    with mx.autograd.record():
        y = fast(shared)
    y.backward()
    assert np.array_equal(net.bias.grad().asnumpy(), np.full(4, 2.0))


@pytest.mark.parametrize("train", [False, True])
def test_one_of_several_inputs_in_shared_memory(train: bool) -> None:
    """A mask that a worker of a DataLoader made, beside data that was copied already."""

    class Masked(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.conv = mx.gluon.nn.Conv2D(4, 3, padding=1, in_channels=3)

        def hybrid_forward(self, F, x, mask):
            return F.broadcast_mul(F.relu(self.conv(x)), mask)

    net = Masked()
    net.initialize()
    fast = graphopt.optimize(net)
    x, mask = mx.nd.random.normal(shape=(2, 3, 8, 8)), mx.nd.ones((2, 1, 8, 8))
    for given in (mask, *[mask.as_in_context(mx.Context("cpu_shared", 0))] * 2):
        with mx.autograd.record() if train else nullcontext():
            y = fast(x, given)
        if train:
            y.backward()
        np.testing.assert_allclose(y.asnumpy(), net(x, given).asnumpy(), rtol=1e-4, atol=1e-5)


def test_step_with_labels_in_shared_memory() -> None:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(8, 3, in_channels=3), mx.gluon.nn.Dense(4))
    net.initialize()
    loss = mx.gluon.loss.SoftmaxCELoss()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    step = graphopt.train_step(net, loss, trainer)
    x, label = mx.nd.random.normal(shape=(2, 3, 8, 8)), mx.nd.array([1, 2])
    want = loss(net(x), label).asnumpy()
    for given in (label, *[label.as_in_context(mx.Context("cpu_shared", 0))] * 2):
        np.testing.assert_allclose(step(x, given).asnumpy(), want, rtol=1e-5, atol=1e-6)


def test_weights_that_follow_from_inputs_are_those_of_each_call():
    class Hyper(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = mx.gluon.nn.Dense(5, in_units=8)

        def hybrid_forward(self, F, x, weight, bias):
            hidden = F.FullyConnected(x, F.tanh(weight), bias, num_hidden=8)
            return F.relu(self.dense(hidden))

    net = Hyper()
    net.initialize(mx.init.Xavier())
    fast = graphopt.optimize(net)
    rng = np.random.default_rng(0)
    for _ in range(3):
        inputs = [mx.nd.array(rng.standard_normal(shape)) for shape in ((4, 8), (8, 8), (8,))]
        np.testing.assert_allclose(
            fast(*inputs).asnumpy(), net(*inputs).asnumpy(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("item", [3, "done", None, [1], {"a": 2}])
def test_writes_of_other_things_into_lists(item: object) -> None:
    class Telling(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, told):
            told.append(item)
            return x * 2

    fast, told = graphopt.optimize(Telling()), [mx.nd.ones(2)]
    for _ in range(3):
        same(fast(mx.nd.ones(2), told[:1]), mx.nd.ones(2) * 2)
    fast(mx.nd.ones(2), told)
    assert told[1:] == [item]


def test_arrays_may_be_nested_in_place() -> None:
    class Nesting(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, states):
            states[0] = [states[0]]
            return x * 2

    fast, states = graphopt.optimize(Nesting()), [mx.nd.ones(2)]
    fast(mx.nd.ones(2), states)
    assert isinstance(states[0], list)


class Keeping(mx.gluon.HybridBlock):
    """Writes its new state where it found the old one."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(4, in_units=4)

    def hybrid_forward(self, F, x, states):
        states[0] = F.tanh(self.dense(x) + states[0])
        return states[0] * 2


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("record", [None, True, False])
def test_writes_into_lists_that_are_given(record: bool | None, *, hybridized: bool) -> None:
    """They are lost where MXNet's are."""

    def called(net) -> list[np.ndarray]:
        x, states = mx.nd.ones((2, 4)), [mx.nd.zeros((2, 4))]
        return [net(x, states).asnumpy() for _ in range(12)]

    net = Keeping()
    net.initialize(mx.init.Uniform(1))
    if hybridized:
        net.hybridize()
    want = called(net)
    fast = graphopt.optimize(net, record=record)
    np.testing.assert_allclose(called(fast), want, rtol=1e-5)
    assert ("writes into a list" in str(fast.explain())) == (not hybridized)


def test_a_call_of_the_users_is_made_once() -> None:
    class Scaled(mx.gluon.HybridBlock):
        def __call__(self, x, scale=1.0):
            return super().__call__(x * scale)

        def hybrid_forward(self, F, x):
            return x + float(x.sum().asscalar())  # its Python runs

    fast = graphopt.optimize(Scaled())
    for _ in range(3):
        same(fast(mx.nd.ones(2), scale=3.0), mx.nd.array([9, 9]))
        same(fast(mx.nd.ones(2), 3.0), mx.nd.array([9, 9]))
