"""Values that eight or more read: MXNet has each of their gradients wait for the sum before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.node import FUSED, RECURRENCE

mx = import_mxnet()
nn = mx.gluon.nn
READERS, COLUMNS = 11, 32


class ManyReaders(mx.gluon.HybridBlock):
    """What two of ``make`` make of one value, which others read besides, all added up."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.layers = nn.HybridSequential()
            for _ in range(READERS):
                self.layers.add(nn.Dense(COLUMNS, flatten=False, in_units=COLUMNS))
            self.first = nn.Dense(COLUMNS, flatten=False, in_units=COLUMNS)
            self.own, self.other = make(), make()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        shared = self.first(x)
        read = (layer(shared) for layer in self.layers)
        return F.add_n(self.own(shared), *read, self.other(shared))


class Gated(mx.gluon.HybridBlock):
    """A row's sum in its gradient, and a learned row."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.norm = nn.LayerNorm(in_channels=COLUMNS)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.norm(F.sigmoid(x) * x)


def batch_norm() -> Any:
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(axis=-1, in_channels=COLUMNS), nn.Activation("relu"))
    return net


def gradients(net: Any, own: Any, x: Any) -> dict[str, np.ndarray]:
    with mx.autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    params = own.collect_params().values()
    return {p.name: p.grad().asnumpy() for p in params if p.grad_req != "null"}


@pytest.mark.parametrize(
    ("make", "op", "options"),
    [
        (Gated, FUSED, {}),
        (Gated, FUSED, {"memory": "1GB"}),  # scratch is in the plan then
        (batch_norm, None, {}),
        (
            lambda: mx.gluon.rnn.LSTM(COLUMNS, input_size=COLUMNS),
            RECURRENCE,
            {"passes": "import-rnn{measure=False}"},
        ),
    ],
)
def test_gradients(make: Any, op: str | None, options: dict[str, str]) -> None:
    net = ManyReaders(make)
    net.initialize(mx.init.Normal(0.2))
    x = mx.nd.random.normal(shape=(9, 4, COLUMNS))
    fast = graphopt.optimize(net, **options)
    wanted, found = gradients(net, net, x), gradients(fast, net, x)
    assert op is None or any(node.op == op for node in fast.graph("training"))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
