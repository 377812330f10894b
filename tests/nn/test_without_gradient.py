"""Behind operators without a gradient nothing is computed, as in MXNet: 0 * inf is no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.analysis.gradients import without_gradient
from graphopt.compat import import_mxnet

mx = import_mxnet()


class Net(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """A function of two arrays."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        return self.function(F, x, y)


def nearest(F: Any, x: Any, codes: Any) -> Any:
    """Vector quantization."""
    apart = F.broadcast_sub(F.expand_dims(x, 1), F.expand_dims(codes, 0))
    return F.square(x - F.take(codes, F.argmin(F.norm(apart, axis=2), axis=1)))


def picked(F: Any, x: Any, y: Any) -> Any:
    return F.one_hot(F.argmax(F.sqrt(x), axis=1), 4) * y


def beside_others(F: Any, x: Any, y: Any) -> Any:
    """One kernel has two outputs, and a gradient comes to one of them."""
    roots = F.sqrt(x) * 2
    return F.one_hot(F.argmax(roots, axis=1), 4) * y + F.batch_dot(
        F.expand_dims(F.exp(x) * x, 1), F.expand_dims(F.exp(x) * x, 2)
    ).reshape((-1, 1)).broadcast_axes(axis=1, size=4)


def chosen(F: Any, x: Any, y: Any) -> Any:
    """`argmax_channel` has no gradient that MXNet knows of."""
    return F.where(F.argmax_channel(F.log(F.relu(x))), x, y)


def of_a_product(F: Any, x: Any, y: Any) -> Any:
    order = F.argsort(F.sqrt(F.dot(x, y, transpose_b=True)), axis=1)
    return F.slice_axis(order, axis=1, begin=0, end=1) + F.sum(x * y, axis=1, keepdims=True)


FUNCTIONS = [nearest, picked, beside_others, chosen, of_a_product]


@pytest.mark.parametrize("request_", ["write", "add"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=[f.__name__ for f in FUNCTIONS])
@pytest.mark.parametrize("rows", [3, 600])  # by the calling thread, and by MXNet's engine
def test_gradients(function: Callable[..., Any], request_: str, rows: int) -> None:
    x, y = (np.random.default_rng(seed).random((rows, 4)).astype("float32") for seed in (0, 1))
    x[0] = y[0] = 0
    found = []
    for net in (Net(function), graphopt.optimize(Net(function), strict=True)):
        net.hybridize()
        given = [mx.nd.array(x), mx.nd.array(y)]
        for array in given:
            array.attach_grad(request_)
        for _ in range(2):
            with mx.autograd.record():
                out = net(*given)
            out.backward()
        found.append([out.asnumpy(), *(array.grad.asnumpy() for array in given)])
    for expected, got in zip(*found, strict=True):
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_what_no_gradient_comes_to() -> None:
    graph = graphopt.lift(Net(beside_others), {"data0": (3, 4), "data1": (3, 4)})
    silent = {graph[value.node].op for value in without_gradient(graph)}
    assert silent == {"sqrt", "_mul_scalar", "argmax"}


def test_what_starts_a_gradient_does_so() -> None:
    text = """
    graph heads(%x: f32[3,4], %label: f32[3]) {
      %soft = SoftmaxOutput(%x, %label) : f32[3,4]
      %best = argmax(%soft) {axis=1} : f32[3]
      return %best
    }
    """
    graph = graphopt.parse(text)
    assert {graph[value.node].name for value in without_gradient(graph)} == {"soft"}
