"""Gradients of outputs that fit no output are refused before anything is read of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


def pointwise() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Activation("tanh"), nn.LeakyReLU(0.3), nn.Activation("sigmoid"))
    return net


class Looping(mx.gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        steps = F.reshape(x, (4, 2, -1))
        first = F.zeros_like(F.slice_axis(steps, axis=0, begin=0, end=1)).reshape((2, -1))
        outputs, _ = F.contrib.foreach(lambda d, t: (F.tanh(d + t),) * 2, steps, first)
        return outputs


NETS = {"pointwise": pointwise, "rows": nn.LayerNorm, "loop": Looping}


def learned(y: Any, head: Any, x: Any) -> np.ndarray:
    y.backward(head)
    return x.grad.asnumpy()


@pytest.mark.parametrize("columns", [16, 6000])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 16), "float32"), ((2,), "float32"), ((8, 9000), "float32"), (None, "float64")],
)
def test_they_are_refused(net: str, columns: int, shape: Any, dtype: str) -> None:
    made = NETS[net]()
    made.initialize()
    fast = graphopt.optimize(made)
    x = mx.nd.array(np.linspace(-1, 1, 8 * columns).reshape(8, columns))
    x.attach_grad()
    for _ in range(2):
        with mx.autograd.record():
            y = fast(x)
        head = mx.nd.ones(shape or y.shape, dtype=dtype)
        with pytest.raises(mx.MXNetError):
            learned(y, head, x)
        with mx.autograd.record():
            y = fast(x)
        head = mx.nd.ones((y.size,))  # MXNet takes any shape of as many
        assert np.isfinite(learned(y, head, x)).all()
