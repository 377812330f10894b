"""Python that has to run for each sample: of children that are not hybridized, and with state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

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
