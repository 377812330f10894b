"""Optimized views of Gluon Blocks learn as the Block does: the same gradients and statistics."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.optimize_support import gradients, image, same, small_cnn

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def test_gradients_and_running_statistics_are_those_of_the_plain_net() -> None:
    plain, net = small_cnn(), small_cnn()
    x = image()
    plain(x), net(x)
    for a, b in zip(plain.collect_params().values(), net.collect_params().values(), strict=True):
        b.set_data(a.data())
    fast = graphopt.optimize(net)
    want, got = gradients(plain, x), gradients(fast, x)
    for a, b in zip(want.values(), got.values(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    for a, b in zip(
        plain.collect_params(".*running.*").values(),
        net.collect_params(".*running.*").values(),
        strict=True,
    ):
        same(a.data(), b.data())


def test_two_calls_before_one_backward_and_gradients_that_add() -> None:
    plain, fast = (small_cnn() for _ in range(2))
    x, y = image(), image()
    plain(x), fast(x)
    for a, b in zip(plain.collect_params().values(), fast.collect_params().values(), strict=True):
        b.set_data(a.data())
    view = graphopt.optimize(fast)
    grads = []
    for net, owner in ((plain, plain), (view, fast)):
        weight = owner[0].weight
        weight.grad_req = "add"
        weight.zero_grad()
        for _ in range(2):
            with autograd.record():
                loss = (net(x) * net(y)).sum()
            loss.backward()
        grads.append(weight.grad().asnumpy())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-4, atol=1e-5)


def test_gradients_through_a_child_that_returns_its_input() -> None:
    class Residual(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.body = nn.Dense(3, in_units=3)
                self.shortcut = mx.gluon.contrib.nn.Identity()

        def forward(self, x):
            return self.shortcut(self.body(x))

    net = Residual()
    net.initialize()
    x = mx.nd.ones((2, 3))
    want, got = gradients(net, x), gradients(graphopt.optimize(net), x)
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-5)


def test_gradients_of_an_input_that_is_returned() -> None:
    class Both(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return x, F.broadcast_minimum(x, y)

    x, y = mx.nd.array([[2.0, -1.0]]), mx.nd.array([[1.0, 1.0]])
    x.attach_grad()
    net = graphopt.optimize(Both())
    with autograd.record():
        returned, least = net(x, y)
        loss = (3 * returned + least).sum()
    loss.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), [[3.0, 4.0]])


@pytest.mark.parametrize("train_mode", [True, False])
def test_gradients_of_inputs(train_mode: bool) -> None:
    # No BatchNorm: MXNet's own backward through it is not reproducible with train_mode=False.
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="tanh"), nn.Dropout(0.0), nn.Dense(2))
    net.initialize()
    grads = []
    for model in (net, graphopt.optimize(net)):
        x = mx.nd.ones((2, 3)) * 0.3
        x.attach_grad()
        with autograd.record(train_mode=train_mode):
            loss = (model(x) ** 2).sum()
        loss.backward(train_mode=train_mode)
        grads.append(x.grad.asnumpy())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-5)


class Step(mx.gluon.HybridBlock):
    """A cell that adds to its state, and hands the sum on."""

    def __init__(self, *, single: bool) -> None:
        super().__init__()
        self.single = single
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(8, in_units=8)

    def hybrid_forward(self, F, x, state):
        added = self.dense(x) + state
        return (added, added) if self.single else (F.tanh(added), added)


@pytest.mark.parametrize("passes", ["default", "eliminate-dead-code"])
@pytest.mark.parametrize("single", [False, True])
def test_a_cell_that_hands_on_sums_can_be_called_again_before_backward(single, passes):
    # With static memory MXNet overwrites the gradient between two such calls.
    net = Step(single=single)
    net.initialize(mx.init.Xavier())
    fast = graphopt.optimize(net, passes=passes)

    def gradient(cell, seed):
        x, state = (mx.nd.array(a) for a in np.random.RandomState(seed).randn(2, 4, 8))
        others = [mx.nd.full((4, 8), 1e9) for _ in range(40)]
        mx.nd.waitall()
        del others  # what is freed is not zero
        with mx.autograd.record():
            for _ in range(3):
                x, state = cell(x, state)
            loss = (x * x).sum()
        loss.backward()
        return net.dense.weight.grad().asnumpy().copy()

    for seed in range(4):
        wanted = gradient(net, seed)
        assert np.allclose(gradient(fast, seed), wanted, rtol=1e-4, atol=1e-4)
