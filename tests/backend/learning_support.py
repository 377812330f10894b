"""What tests of nets that the calling thread trains share: small nets, and one step of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet

mx = import_mxnet()


class Net(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """A function of two arrays."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def hybrid_forward(self, F: Any, x: Any, w: Any) -> Any:
        return self.function(F, x, w)


def gate(F: Any, x: Any, w: Any) -> Any:
    return F.tanh(F.broadcast_mul(x, w) + 1.5) * F.sigmoid(x)


def normed(F: Any, x: Any, w: Any) -> Any:
    return F.softmax(F.LayerNorm(x, w, w) * 2.0)


def noise(*shape: int, seed: int = 0) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape))


def learnt(net: Any, x: Any, w: Any, request: str = "write") -> list[Any]:
    """The output, and the gradients, which were ones."""
    slopes = [mx.nd.ones_like(x), mx.nd.ones_like(w)]
    mx.autograd.mark_variables([x, w], slopes, request)
    with mx.autograd.record():
        y = net(x, w)
    y.backward(noise(*y.shape, seed=9))
    return [array.asnumpy() for array in (y, *slopes)]


def assert_same(got: list[Any], want: list[Any]) -> None:
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-5)
