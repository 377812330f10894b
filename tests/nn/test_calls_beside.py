"""Gradients of nets that are called several times at once, or whose weights others use as well."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.tiers import one_of

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd


def discriminator() -> Any:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, in_channels=1),
            nn.LeakyReLU(0.2),
            nn.BatchNorm(in_channels=4),
            nn.Flatten(),
            nn.Dense(1, in_units=144),
        )
    net.initialize()
    for seed, parameter in enumerate(net.collect_params().values()):
        values = np.random.default_rng(seed).uniform(0.1, 0.5, parameter.shape)
        parameter.set_data(mx.nd.array(values))
    return net


def images(seed: int) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=(4, 1, 8, 8)))


def once(net: Any, called: Any) -> Any:
    return (called(images(0)) ** 2).sum()


def twice(net: Any, called: Any) -> Any:
    return (called(images(0)) ** 2).sum() + (called(images(1)) ** 2).sum()


def with_decay(net: Any, called: Any) -> Any:
    weights = [p.data() for p in net.collect_params().values() if p.grad_req != "null"]
    return once(net, called) + mx.nd.add_n(*[(weight**2).sum() for weight in weights])


LOSSES = [once, twice, with_decay]


@pytest.mark.parametrize(
    ("then", "first", "options"),
    one_of(4, itertools.product(LOSSES, LOSSES, [{}, {"record": True}, {"precise": True}])),
)
def test_steps_of_different_losses(
    first: Callable[..., Any], then: Callable[..., Any], options: dict[str, Any]
) -> None:
    plain, net = discriminator(), discriminator()
    fast = graphopt.optimize(net, **options)
    for loss in (first, first, then, then, first):
        for block, called in ((plain, plain), (net, fast)):
            with autograd.record():
                total = loss(block, called)
            total.backward()
        for name, parameter in plain.collect_params().items():
            of = net.collect_params()[name]
            found, want = (
                (p.data() if p.grad_req == "null" else p.grad()).asnumpy() for p in (of, parameter)
            )
            np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3 * abs(want).max())


@pytest.mark.parametrize("options", [{}, {"record": True}, {"memory": "1GB"}], ids=str)
def test_two_calls_with_constants_each_have_a_backward(options: dict[str, Any]) -> None:
    loss = mx.gluon.loss.SoftmaxCELoss()  # picks by a range, a constant of the compiled graph
    fast = graphopt.optimize(loss, **options)
    weight, label = mx.nd.ones((6, 4)), mx.nd.array([0, 1, 2])
    inputs = [mx.nd.array(np.random.default_rng(n).normal(size=(3, 6))) for n in range(2)]
    weight.attach_grad("add")
    found = []
    for called in (loss, fast, fast):
        weight.grad[:] = 0
        with autograd.record():
            losses = [called(mx.nd.dot(x, weight), label.copy()) for x in inputs]
        for each in losses:
            each.backward()
        found.append(weight.grad.asnumpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5, atol=1e-6)


class Twin(mx.gluon.HybridBlock):
    """Calls one BatchNorm twice; what is computed last reads the first call last."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2, use_bias=False)
            self.norm = nn.BatchNorm(in_channels=2)

    def hybrid_forward(self, F: Any, a: Any, b: Any) -> Any:
        return self.norm(self.dense(a)) + 2 * self.norm(self.dense(b))


class FarTwin(Twin):
    """Another layer stands between the first call and the sum."""

    def hybrid_forward(self, F: Any, a: Any, b: Any) -> Any:
        return self.dense(F.tanh(self.norm(self.dense(a)))) + F.tanh(self.norm(self.dense(b)))


@pytest.mark.parametrize("kind", [Twin, FarTwin])
@pytest.mark.parametrize("options", [{}, {"memory": "1GB"}], ids=str)
def test_states_of_a_layer_called_twice_are_written_in_order(
    kind: type[Twin], options: dict[str, Any]
) -> None:
    a = mx.nd.array([[0.0, 1], [2, 3]])
    states = []
    for is_plain in (True, False):
        net = kind()
        net.initialize(mx.init.One())
        called = net if is_plain else graphopt.optimize(net, **options)
        for _ in range(3):
            with autograd.record():
                loss = (called(a, a + 10) ** 2).sum()
            loss.backward()
        states.append(net.norm.running_mean.data().asnumpy())
    np.testing.assert_allclose(states[1], states[0], rtol=1e-5)


class Siamese(mx.gluon.HybridBlock):
    """Calls a SymbolBlock twice, which brings its variables each time."""

    def __init__(self) -> None:
        super().__init__()
        data = mx.sym.var("data", dtype="float32")
        with self.name_scope():
            dense = mx.sym.FullyConnected(data, num_hidden=4, name="fc")
            self.block = mx.gluon.SymbolBlock(dense, data)

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        return F.abs(self.block(x) - self.block(y)).sum(axis=1)


@pytest.mark.parametrize("options", [{}, {"record": True}, {"memory": "1GB"}], ids=str)
def test_a_symbol_block_that_is_called_twice(options: dict[str, Any]) -> None:
    net = Siamese()
    net.initialize(mx.init.Normal(0.5))
    fast = graphopt.optimize(net, **options)
    x, y = (mx.nd.array(np.random.default_rng(n).normal(size=(2, 3))) for n in range(2))
    np.testing.assert_allclose(fast(x, y).asnumpy(), net(x, y).asnumpy(), rtol=1e-5)
    gradients = []
    for called in (net, fast):
        with autograd.record():
            loss = called(x, y).sum()
        loss.backward()
        gradients.append([p.grad().asnumpy() for p in net.collect_params().values()])
    for found, want in zip(*gradients, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


class Loops(mx.gluon.HybridBlock):
    """Loops behind each other, whose steps cannot be one operator."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        for _ in range(4):
            x, _ = F.contrib.foreach(lambda row, states: (F.exp(-row * row), []), x, [])
        return x


@pytest.mark.parametrize("options", [{}, {"mode": "inference"}, {"passes": "none"}], ids=str)
def test_what_reads_the_results_of_loops_waits_for_them(options: dict[str, Any]) -> None:
    x = mx.nd.array(np.random.default_rng(0).uniform(size=(6, 3, 2, 4, 4)))
    want = Loops()(x).asnumpy()
    fast = graphopt.optimize(Loops(), **options)
    for _ in range(5):
        np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-5, atol=1e-6)
