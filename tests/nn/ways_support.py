"""What tests of ways to call share: a Block whose Python has to run, and calls that are checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn

#: Calls after which any trial has ended.
ENOUGH = 40


class Residual(mx.gluon.Block):
    """A plain Block with code of its own between its children."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.Dense(6, activation="tanh", in_units=6)
            self.second = nn.Dense(6, in_units=6)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return mx.nd.sin(self.second(self.first(x)) + x) * x.shape[1]


def made(cls: type = Residual) -> Any:
    block = cls()
    block.initialize(mx.init.Normal(0.5))
    return block


def data(rows: int = 3) -> Any:
    return mx.nd.array(np.random.default_rng(rows).normal(size=(rows, 6)))


def check(net: Any, plain: Any, x: Any) -> None:
    np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-4, atol=1e-5)


def chosen(net: Any, mode: str = "inference") -> str | None:
    return net.graphopt_state.ways[mode].chosen
