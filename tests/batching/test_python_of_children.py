"""Children whose Python has to run for each sample, and hybridized ones, of which it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, check

mx = import_mxnet()
nn, nd, autograd = mx.gluon.nn, mx.nd, mx.autograd


def paused(self: Any, F: Any, x: Any) -> Any:
    with autograd.pause():
        gate = F.sigmoid(self.dense(x))
    return self.dense(x) * gate


def counting(self: Any, _F: Any, x: Any) -> Any:  # noqa: N803
    self.calls += 1
    return self.dense(x) * self.calls


def drawing(self: Any, _F: Any, x: Any) -> Any:  # noqa: N803
    return self.dense(x) * np.random.rand()


def asking(self: Any, F: Any, x: Any) -> Any:
    return self.dense(x) * (2 if F is nd else 3)


def looking(self: Any, _F: Any, x: Any) -> Any:  # noqa: N803
    return self.dense(x) * (2 if isinstance(x, nd.NDArray) else 3)


def predicting(self: Any, F: Any, x: Any) -> Any:
    with autograd.predict_mode():
        return F.Dropout(self.dense(x), p=0.999)


class Child(mx.gluon.HybridBlock):
    """With that ``hybrid_forward``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.calls = function, 0
        self.dense = nn.Dense(4, in_units=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.function(self, F, x)


class Net(mx.gluon.Block):
    """Around a child."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.child = Child(function)

    def forward(self, x: Any) -> Any:
        return self.child(x)


@pytest.mark.parametrize("function", [paused, counting, drawing, asking, looking, predicting])
def test_their_samples_are_as_by_themselves(function: Callable[..., Any]) -> None:
    samples = [(nd.array(np.random.default_rng(i).normal(size=(1, 4))),) for i in range(3)]
    found = []
    for is_batched in (False, True):
        mx.random.seed(0)
        np.random.seed(0)
        net = Net(function)
        net.initialize(mx.init.Xavier())
        batch = graphopt.batch(net)
        with autograd.record():
            if is_batched:
                y = batch(samples)
            else:
                y = nd.concat(*[net(*sample) for sample in samples], dim=0)
            loss = y.square().sum()
        loss.backward()
        found.append((y.asnumpy(), net.child.dense.weight.grad().asnumpy()))
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


class Keeping(mx.gluon.Block):
    """Keeps its state on itself, and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Dense(4, in_units=4)

    def forward(self, x: Any) -> Any:
        self.state = x
        for _ in range(5):
            self.state = nd.tanh(self.cell(self.state) + x)
            if self.state.sum().asscalar() > 1:
                break
        return self.state


def test_samples_that_keep_a_state_on_the_block_go_on_in_turn() -> None:
    samples = [(nd.array(np.random.default_rng(i).normal(size=(1, 4))),) for i in range(6)]
    net = Keeping()
    net.initialize(mx.init.Xavier())
    want = nd.concat(*[net(*sample) for sample in samples], dim=0).asnumpy()
    found = graphopt.batch(net)(samples).asnumpy()
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def mixing(self: Any, F: Any, x: Any) -> Any:
    return F.cumsum(paused(self, F, x), axis=1)


def looping(self: Any, F: Any, x: Any) -> Any:
    def step(row: Any, state: Any) -> Any:
        return row + state, row * state

    return F.contrib.foreach(step, self.dense(x), F.ones(4))[0]


def learning(self: Any, F: Any, x: Any) -> Any:
    return F.cumsum(self.dense(x) + F.zeros((0, 4)), axis=1)


def noisy(self: Any, F: Any, x: Any) -> Any:
    return F.cumsum(self.dense(x) + 1e-9 * F.random.normal(), axis=1)


def setting(function: Callable[..., Any]) -> Callable[..., Any]:
    """That changes what the next call of its Python makes."""

    def call(self: Any, F: Any, x: Any) -> Any:
        self.calls += 1
        return function(self, F, x) * self.calls

    return call


@pytest.mark.parametrize("function", [setting(paused), setting(mixing)], ids=["rows", "mixing"])
def test_hybridized_ones_are_their_first_graph(function: Callable[..., Any]) -> None:
    samples = [(nd.array(np.random.default_rng(i).normal(size=(1, 4))),) for i in range(3)]
    found = []
    for is_batched in (False, True):
        mx.random.seed(0)
        net = Net(function)
        net.initialize(mx.init.Xavier())
        net.child.hybridize()
        batch = graphopt.batch(net, debug=not is_batched)
        for _ in range(2):
            with autograd.record():
                y = batch(samples)
                loss = y.square().sum()
            loss.backward()
            net.child.calls = 7
        found.append((y.asnumpy(), net.child.dense.weight.grad().asnumpy()))
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [mixing, learning, looping, noisy])
def test_hybridized_ones_that_are_recorded_in_parts(function: Callable[..., Any]) -> None:
    net = Net(function)
    net.initialize(mx.init.Xavier())
    net.child.hybridize()
    samples = [(nd.array(np.random.default_rng(i).normal(size=(1, 4))),) for i in range(3)]
    batched = check(net, samples)
    assert "is recorded operator by operator" in batched.explain()


def test_an_attribute_that_a_sample_sets_does_not_count_in_a_hybridized_one() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = net.child(x)
        net.child.calls += 1
        return y

    net = Fn(forward, child=Child(lambda self, F, x: self.dense(x) * (1 + self.calls)))
    net.initialize()
    net.child.hybridize()
    batched = check(net, [(nd.ones((1, 4)) * n,) for n in range(3)], groups=1)
    assert "operator by operator" not in batched.explain()
