"""MXNet's operators to which no gradient comes back pass none on, where MXNet ended the process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()
nd = mx.nd

WEIGHT = nd.array(np.random.default_rng(0).standard_normal((4, 4)))
ROWS = nd.array([0, 2, 1])

COMPUTING = {
    "Concat": lambda x: nd.concat(x, x, dim=0),
    "gather_nd": lambda x: nd.gather_nd(x, ROWS.reshape((1, -1))),
    "add_n": lambda x: nd.add_n(x, x, x),
    "SliceChannel": lambda x: nd.SliceChannel(x, num_outputs=3, axis=0)[1],
    "where": lambda x: nd.where(ROWS, x, x),
    "batch_dot": lambda x: nd.batch_dot(x.expand_dims(0), WEIGHT.expand_dims(0)),
    "Convolution": lambda x: nd.Convolution(
        x.expand_dims(0), nd.ones((1, 3, 1)), no_bias=True, num_filter=1, kernel=(1,)
    ),
    "FullyConnected": lambda x: nd.FullyConnected(x, WEIGHT, no_bias=True, num_hidden=4),
    "LayerNorm": lambda x: nd.LayerNorm(x, WEIGHT[0], WEIGHT[1]),
}


@pytest.mark.parametrize("op", COMPUTING)
def test_nothing_comes_back_through_an_order(op: str) -> None:
    def order(x: Any) -> Any:
        return nd.argmax(COMPUTING[op](x * 2) * 2, axis=1)

    bridge.load(mx)
    x = nd.array([[1, 2, 3, 4], [5, 1, 7, 0], [2, 8, 1, 3]])
    x.attach_grad()
    x.grad[:] = 1
    with mx.autograd.record():
        loss = order(x).sum()
    loss.backward()
    assert not x.grad.asnumpy().any()
