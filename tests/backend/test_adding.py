"""Gradients that are added to, by operators whose backward in MXNet overwrites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.adding import ADDING
from graphopt.compat import import_mxnet

mx = import_mxnet()
sym = mx.sym
X, Y, W = (sym.var(name) for name in "xyw")


class Applied(mx.gluon.HybridBlock):
    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.function(F, x)


REMOVED = {
    "mean of a product": lambda F, x: F.mean(x * 1, axis=0),
    "mean of an identity": lambda F, x: F.mean(F.identity(x), axis=0),
    "moments of a sum": lambda F, x: F.moments(x + 0, axes=(0,))[0],
    "sums behind transposes": lambda F, x: F.cumsum(x.transpose().transpose()),
    "two alike": lambda F, x: F.mean(x, axis=0) + F.mean(x, axis=0),
    "kept in place": lambda F, x: F.identity(F.mean(x * 2, axis=0)),
}


@pytest.mark.parametrize("name", REMOVED)
def test_gradients_are_added_to(name: str) -> None:
    def gradient(net: Any) -> Any:
        x = mx.nd.array(np.arange(12).reshape(4, 3) / 5)
        x.attach_grad("add")
        for _ in range(2):
            with mx.autograd.record():
                loss = net(x).sum()
            loss.backward()
        return x.grad.asnumpy()

    want = gradient(Applied(REMOVED[name]))
    np.testing.assert_allclose(gradient(graphopt.optimize(Applied(REMOVED[name]))), want, rtol=1e-5)


def test_one_reader_is_left_alone() -> None:
    """A mean of an input is what the user wrote, and fast."""
    fast = graphopt.optimize(Applied(lambda F, x: F.cumsum(x)))
    x = mx.nd.ones((4, 3))
    x.attach_grad()
    with mx.autograd.record():
        loss = fast(x).sum()
    loss.backward()
    assert "_copy" not in str(fast.graph("training"))


OPERATORS = {
    "Activation": (sym.Activation(X, act_type="tanh"), {"x": (4, 5)}),
    "BatchNorm": (sym.BatchNorm(X, Y, W, fix_gamma=False), {"x": (4, 5), "y": (5,), "w": (5,)}),
    "Cast": (sym.cast(X, "float64"), {"x": (4, 5)}),
    "Concat": (sym.Concat(X, Y, dim=0), {"x": (4, 5), "y": (2, 5)}),
    "Convolution": (
        sym.Convolution(X, W, num_filter=4, kernel=(3, 3), no_bias=True),
        {"x": (2, 3, 6, 6), "w": (4, 3, 3, 3)},
    ),
    "Deconvolution": (
        sym.Deconvolution(X, W, num_filter=4, kernel=(3, 3), no_bias=True),
        {"x": (2, 3, 6, 6), "w": (3, 4, 3, 3)},
    ),
    "Embedding": (
        sym.Embedding(sym.ones((4,)), W, input_dim=5, output_dim=3),
        {"w": (5, 3)},
    ),
    "Flatten": (sym.Flatten(X), {"x": (4, 5, 2)}),
    "FullyConnected": (
        sym.FullyConnected(X, W, num_hidden=3, no_bias=True),
        {"x": (4, 5), "w": (3, 5)},
    ),
    "LayerNorm": (sym.LayerNorm(X, Y, W), {"x": (4, 5), "y": (5,), "w": (5,)}),
    "LeakyReLU": (sym.LeakyReLU(X), {"x": (4, 5)}),
    "Pooling": (sym.Pooling(X, kernel=(2, 2), pool_type="max"), {"x": (2, 3, 6, 6)}),
    "Reshape": (sym.Reshape(X, shape=(-1,)), {"x": (4, 5)}),
    "SliceChannel": (sym.SliceChannel(X, num_outputs=5, axis=1)[1], {"x": (4, 5)}),
    "SwapAxis": (sym.SwapAxis(X, dim1=0, dim2=1), {"x": (4, 5)}),
    "UpSampling": (sym.UpSampling(X, scale=2, sample_type="nearest"), {"x": (1, 2, 4, 5)}),
    "_copy": (sym.identity(X), {"x": (4, 5)}),
    "_mul_scalar": (X * 2, {"x": (4, 5)}),
    "add_n": (sym.add_n(X, Y), {"x": (4, 5), "y": (4, 5)}),
    "batch_dot": (sym.batch_dot(X, W), {"x": (2, 4, 5), "w": (2, 5, 3)}),
    "broadcast_add": (sym.broadcast_add(X, Y), {"x": (4, 5), "y": (1, 5)}),
    "broadcast_mul": (sym.broadcast_mul(X, Y), {"x": (4, 5), "y": (1, 5)}),
    "dot": (sym.dot(X, W), {"x": (4, 5), "w": (5, 3)}),
    "elemwise_div": (X / Y, {"x": (4, 5), "y": (4, 5)}),
    "elemwise_mul": (X * Y, {"x": (4, 5), "y": (4, 5)}),
    "exp": (sym.exp(X), {"x": (4, 5)}),
    "expand_dims": (sym.expand_dims(X, axis=1), {"x": (4, 5)}),
    "log_softmax": (sym.log_softmax(X), {"x": (4, 5)}),
    "relu": (sym.relu(X), {"x": (4, 5)}),
    "slice_axis": (sym.slice_axis(X, axis=0, begin=1, end=3), {"x": (4, 5)}),
    "softmax": (sym.softmax(X), {"x": (4, 5)}),
    "square": (sym.square(X), {"x": (4, 5)}),
    "stack": (sym.stack(X, Y), {"x": (4, 5), "y": (4, 5)}),
    "sum": (sym.sum(X, axis=0), {"x": (4, 5)}),
    "take": (sym.take(W, sym.ones((4,))), {"w": (5, 3)}),
    "tile": (sym.tile(X, reps=(2, 1)), {"x": (4, 5)}),
    "transpose": (sym.transpose(X), {"x": (4, 5)}),
    "where": (sym.where(X > 1, X, Y), {"x": (4, 5), "y": (4, 5)}),
}


def test_all_operators_that_need_no_copy_are_tried() -> None:
    assert OPERATORS.keys() == ADDING


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_mxnet_that_add(name: str) -> None:
    symbol, shapes = OPERATORS[name]
    rng = np.random.default_rng(1)
    arrays = {key: mx.nd.array(rng.uniform(0.5, 1.5, shape)) for key, shape in shapes.items()}
    states = {key: mx.nd.ones((5,)) for key in symbol.list_auxiliary_states()}
    written, added = {}, {}
    for request, found in (("write", written), ("add", added)):
        gradients = {key: mx.nd.ones(shape) * 10 for key, shape in shapes.items()}
        executor = symbol.bind(mx.cpu(), arrays, gradients, request, states)
        outputs = executor.forward(is_train=True)
        executor.backward([mx.nd.ones(o.shape, dtype=o.dtype) * 1.5 for o in outputs])
        found.update({key: array.asnumpy() for key, array in gradients.items()})
    for key, gradient in written.items():
        np.testing.assert_allclose(added[key], gradient + 10, rtol=1e-4)
