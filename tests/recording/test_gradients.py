"""Gradients, statistics and draws of recorded Blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.recording.nets import array, block

mx = import_mxnet()
nn = mx.gluon.nn


def gradients(net: Any, call: Any, *args: Any) -> dict[str, np.ndarray]:
    mx.random.seed(1)
    for arg in args:
        arg.attach_grad()
    with mx.autograd.record():
        loss = mx.nd.sum(call(*args) ** 2)
    loss.backward()
    found = {f"arg{n}": a.grad.asnumpy() for n, a in enumerate(args)}
    return found | {
        k: p.grad().asnumpy() for k, p in net.collect_params().items() if p.grad_req != "null"
    }


def assert_same_gradients(net: Any, *args: Any) -> None:
    net(*args)  # parameters get their shapes
    optimized = graphopt.optimize(net, record=True)
    for _ in range(2):
        wanted, found = gradients(net, net, *args), gradients(net, optimized, *args)
        for name in wanted:
            np.testing.assert_allclose(
                found[name], wanted[name], rtol=1e-4, atol=1e-5, err_msg=name
            )


def test_gradients() -> None:
    def forward(self, x):
        y = mx.nd.tanh(self.first(x))
        return self.second(mx.nd.concat(y, y[:, :2] * 3, dim=1))

    assert_same_gradients(block(forward, first=nn.Dense(5), second=nn.Dense(3)), array(4, 6))


def test_gradients_across_a_value_that_is_read() -> None:
    def forward(self, x):
        y = self.first(x)
        scale = 2.0 if y.mean().asscalar() > -100 else 1.0
        return self.second(mx.nd.tanh(y) * scale)

    assert_same_gradients(block(forward, first=nn.Dense(5), second=nn.Dense(3)), array(4, 6))


def test_no_gradients_through_paused_parts() -> None:
    def forward(self, x):
        with mx.autograd.pause():
            fixed = self.first(x)
        return self.second(x) * fixed + x.detach()

    net = block(forward, first=nn.Dense(3), second=nn.Dense(3))
    assert_same_gradients(net, array(4, 3))
    assert not net.first.weight.grad().asnumpy().any()


def test_batch_norm_moves_its_statistics() -> None:
    net = block(lambda self, x: mx.nd.relu(self.norm(x)), norm=nn.BatchNorm(in_channels=3))
    moved = []
    for call in (net, graphopt.optimize(net, record=True)):
        net.norm.running_mean.set_data(mx.nd.zeros(3))
        with mx.autograd.record():
            loss = call(array(4, 3, 5, 5)).sum()
        loss.backward()
        mx.nd.waitall()
        moved.append(net.norm.running_mean.data().asnumpy())
    assert moved[0].any()
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-4)


def test_dropout_draws_at_every_call() -> None:
    optimized = graphopt.optimize(
        block(lambda self, x: self.drop(x * 1), drop=nn.Dropout(0.5)), record=True
    )
    with mx.autograd.record():
        first, second = optimized(mx.nd.ones((20, 20))), optimized(mx.nd.ones((20, 20)))
    assert (first != second).sum().asscalar() > 0
    assert optimized(mx.nd.ones((3,))).asnumpy().tolist() == [1, 1, 1]


def test_rows_in_use_of_an_embedding() -> None:
    net = block(
        lambda self, x: self.table(x).sum(axis=1) * 2, table=nn.Embedding(9, 3, sparse_grad=True)
    )
    found = []
    for call in (net, graphopt.optimize(net, record=True)):
        with mx.autograd.record():
            loss = (call(mx.nd.array([[1, 2], [2, 5]])) ** 2).sum()
        loss.backward()
        gradient = net.table.weight.grad()
        assert gradient.stype == "row_sparse"
        found.append(gradient.asnumpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_functions_with_a_backward_of_their_own() -> None:
    class Twice(mx.autograd.Function):
        def forward(self, x):
            return x * 2

        def backward(self, gradient):
            return gradient * 5

    net = block(lambda self, x: Twice()(self.dense(x)) + x[:, :3], dense=nn.Dense(3))
    assert_same_gradients(net, array(2, 4))


def test_parameters_that_are_replaced() -> None:
    net = block(lambda self, x: mx.nd.tanh(self.dense(x)), dense=nn.Dense(3, in_units=4))
    optimized = graphopt.optimize(net, record=True)
    x = array(2, 4)
    optimized(x)
    net.initialize(mx.init.One(), force_reinit=True)
    np.testing.assert_allclose(optimized(x).asnumpy(), net(x).asnumpy(), rtol=1e-5)
    net.dense.weight.set_data(mx.nd.zeros((3, 4)))
    assert not optimized(x).asnumpy().any()


class Centred(mx.gluon.Block):
    """Subtracts a moving mean that it keeps by hand: an array or a parameter."""

    def __init__(self, kind: str, *, is_read_first: bool) -> None:
        super().__init__()
        self.kind, self.is_read_first = kind, is_read_first
        with self.name_scope():
            self.gain = self.params.get("gain", shape=(3,), init="ones")
            self.kept = self.params.get("mean", shape=(3,), init="zeros", grad_req="null")
        self.array = mx.nd.zeros(3)

    def mean(self) -> Any:
        return self.array if self.kind == "array" else self.kept.data()

    def learn(self, x: Any) -> None:
        with mx.autograd.pause():
            found = self.mean() * 0.5 + x.mean(axis=0) * 0.5
            if self.kind == "array":
                self.array[:] = found
            else:
                self.kept.set_data(found)

    def forward(self, x: Any) -> Any:
        if not self.is_read_first:
            self.learn(x)
        found = mx.nd.tanh(x - self.mean()) * self.gain.data()
        if self.is_read_first:
            self.learn(x)
        return found


@pytest.mark.parametrize("kind", ["array", "parameter"])
@pytest.mark.parametrize("is_read_first", [True, False])
@pytest.mark.parametrize("settings", [{}, {"record": True}])
def test_states_that_are_written_between_two_calls(
    kind: str, is_read_first: bool, settings: dict[str, Any]
) -> None:
    """Backward of the first call reads the state as that call did."""
    x = mx.nd.arange(12).reshape((4, 3)) / 10
    found = []
    for optimize in (lambda net: net, lambda net: graphopt.optimize(net, **settings)):
        net = Centred(kind, is_read_first=is_read_first)
        net.initialize()
        called = optimize(net)
        for _ in range(5):
            with mx.autograd.record():
                loss = called(x).sum() + called(x * 3).sum()
            loss.backward()
            found.append([loss.asscalar(), *net.gain.grad().asnumpy(), *net.mean().asnumpy()])
    np.testing.assert_allclose(found[5:], found[:5], rtol=1e-5, atol=1e-6)


def test_numbers_that_are_computed_are_looked_up() -> None:
    """They have a history, which an Embedding of a graph refuses to lead to."""

    def forward(net: Any, x: Any) -> Any:
        numbers = mx.nd.cast(mx.nd.rint(net.first(x)), "int32")
        float(numbers.sum().asscalar())  # what is behind is another program
        return net.table(mx.nd.abs(numbers) % 4)

    net = block(forward, first=nn.Dense(3, in_units=5), table=nn.Embedding(4, 2))
    assert_same_gradients(net, mx.nd.random.normal(shape=(4, 5)))
