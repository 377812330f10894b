"""Within a budget dense layers learn their biases also where their weights are frozen.

MXNet leaves the gradient of such a bias as it was; with weights that learn it computes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.budgets import least, told

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def tower(rows: int = 600) -> tuple[Any, Any]:
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(6):
            net.add(nn.Dense(64, activation="tanh", in_units=64))
    net.initialize(mx.init.Xavier())
    return net, mx.nd.array(np.random.default_rng(0).normal(size=(rows, 64)))


def gradients(net: Any, call: Any, x: Any, *, steps: int = 2, train: bool = True) -> list[Any]:
    """Of the biases, after some steps that begin with zeros."""
    biases = [layer.bias for layer in net]
    for bias in biases:
        bias.zero_grad()
    for _ in range(steps):
        with autograd.record(train_mode=train):
            loss = (call(x) ** 2).sum()
        loss.backward(train_mode=train)
    return [bias.grad().asnumpy().copy() for bias in biases]


def set_requests(net: Any, weights: str, biases: str) -> None:
    for layer in net:
        layer.weight.grad_req, layer.bias.grad_req = weights, biases


def near(got: list[Any], want: list[Any]) -> None:
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * max(1, abs(other).max()))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("request_", ["write", "add"])
def test_biases_learn_beside_frozen_weights(request_: str, train: bool) -> None:
    net, x = tower()
    set_requests(net, "write", request_)
    want = gradients(net, net, x, train=train)
    set_requests(net, "null", request_)
    near(gradients(net, graphopt.optimize(net, memory="1GB"), x, train=train), want)


def test_weights_may_be_frozen_later() -> None:
    net, x = tower()
    set_requests(net, "write", "add")
    want = gradients(net, net, x)
    fast = graphopt.optimize(net, memory="1GB")
    near(gradients(net, fast, x), want)
    set_requests(net, "null", "add")
    near(gradients(net, fast, x), want)
    set_requests(net, "write", "add")
    near(gradients(net, fast, x), want)


def test_what_is_computed_again_learns_too() -> None:
    net, x = tower(20_000)
    set_requests(net, "write", "add")
    want = gradients(net, net, x)
    set_requests(net, "null", "add")
    fast = graphopt.optimize(net, memory=least(net, x))
    near(gradients(net, fast, x), want)
    assert "computed again" in told(fast)
