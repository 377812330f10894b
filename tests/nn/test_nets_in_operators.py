"""Operators of the user's (``mx.operator.CustomOp``) that call nets, in threads of MXNet's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn

#: More than a trial of how a plain Block runs takes.
CALLS = 50


class Calling(mx.operator.CustomOp):
    net: Any = None

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], Calling.net(in_data[0]))

    def backward(
        self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
    ) -> None:
        x = in_data[0].copy()
        x.attach_grad()
        with mx.autograd.record(train_mode=False):
            y = Calling.net(x)
        y.backward(out_grad[0])
        self.assign(in_grad[0], req[0], x.grad)


@mx.operator.register("graphopt_test_calling")
class CallingProp(mx.operator.CustomOpProp):
    def infer_shape(self, in_shape: Any) -> Any:
        return in_shape, in_shape, []

    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
        return Calling()


class Branch(mx.gluon.Block):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.first, self.last = nn.Dense(8, in_units=4), nn.Dense(4, in_units=8)

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        if hidden.sum().asscalar() > 1e9:
            hidden = hidden * 2
        return self.last(mx.nd.tanh(hidden) * 2 + 1)


def dense() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu", in_units=4), nn.LayerNorm(in_channels=64))
    net.add(nn.Dense(4, in_units=64))
    return net


def convolutions() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1, in_channels=4), nn.BatchNorm(in_channels=8))
    net.add(nn.Activation("relu"), nn.Conv2D(4, 3, padding=1, in_channels=8))
    return net


@pytest.mark.parametrize(
    ("make", "shape"), [(dense, (2, 4)), (convolutions, (2, 4, 12, 12)), (Branch, (2, 4))]
)
def test_operators_call_nets(make: Callable[[], Any], shape: tuple[int, ...]) -> None:
    mx.random.seed(0)
    net = make()
    net.initialize(mx.init.Xavier())
    fast = graphopt.optimize(net)
    x = mx.nd.random.uniform(-1, 1, shape)

    def run(called: Any) -> list[Any]:
        Calling.net = called
        x.attach_grad()
        found = [mx.nd.Custom(x, op_type="graphopt_test_calling").asnumpy() for _ in range(CALLS)]
        for _ in range(3):
            with mx.autograd.record(train_mode=False):
                y = mx.nd.Custom(x, op_type="graphopt_test_calling")
            y.backward()
            found += [y.asnumpy(), x.grad.asnumpy()]
        return found

    want = run(net)
    for got, expected in zip(run(fast), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
