"""The gradients of relu and leaky ones by the bridge, in rows and in blocks of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()


def whole(*shape: int, seed: int = 0) -> Any:
    """Small whole numbers: sums of products of them are exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype("float32")


def calls() -> int:
    mx.nd.waitall()
    return int(bridge.load(mx).graphopt_mended_calls())


RECTIFIERS = {
    "relu": (lambda x: mx.nd.Activation(x, act_type="relu"), 0.0),
    "leaky": (lambda x: mx.nd.LeakyReLU(x, act_type="leaky", slope=0.5), 0.5),
    "leaky by itself": (lambda x: mx.nd.LeakyReLU(x), 0.25),
}


@pytest.mark.parametrize("name", RECTIFIERS)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (2, 16, 9, 9), (300_001,)], ids=str)
def test_rows(name: str, shape: tuple[int, ...]) -> None:
    function, slope = RECTIFIERS[name]
    x, head = mx.nd.array(whole(*shape)), whole(*shape, seed=1)
    x.attach_grad()
    with mx.autograd.record():
        y = function(x)
    before = calls()
    y.backward(mx.nd.array(head))
    np.testing.assert_array_equal(x.grad.asnumpy(), np.where(x.asnumpy() > 0, head, slope * head))
    assert calls() == before + 1


@pytest.mark.parametrize("name", RECTIFIERS)
def test_where_the_data_is_no_number(name: str) -> None:
    """oneDNN lets all pass, but its relu returns 0 there; it takes no data of 6 axes."""
    function, slope = RECTIFIERS[name]
    for rank in (2, 6):
        x = mx.nd.array(np.array([np.nan, -1, 0, 2], "f").reshape((2,) * 2 + (1,) * (rank - 2)))
        x.attach_grad()
        with mx.autograd.record():
            y = function(x)
        y.backward()
        through = {2: 0.0 if name == "relu" else 1.0, 6: np.nan if name == "relu" else slope}
        want = [through[rank], slope, slope, 1]
        np.testing.assert_array_equal(x.grad.asnumpy().ravel(), want)


def test_gradients_that_are_added() -> None:
    x, head = mx.nd.array(whole(4, 6)), whole(4, 6, seed=1)
    x.attach_grad("add")
    for _ in range(2):
        with mx.autograd.record():
            y = mx.nd.Activation(x, act_type="relu")
        y.backward(mx.nd.array(head))
    np.testing.assert_array_equal(x.grad.asnumpy(), 2 * np.where(x.asnumpy() > 0, head, 0))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes_are_left_to_mxnet(dtype: str) -> None:
    x, before = mx.nd.array(whole(4, 6), dtype=dtype), calls()
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Activation(x, act_type="relu")
    y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), x.asnumpy() > 0)
    assert calls() == before


@pytest.mark.parametrize("kind", ["sigmoid", "tanh", "softrelu"])
def test_other_activations_are_left_to_mxnet(kind: str) -> None:
    x, before = mx.nd.array(whole(4, 6)), calls()
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Activation(x, act_type=kind)
    y.backward()
    assert np.isfinite(x.grad.asnumpy()).all()
    assert calls() == before


class Net(mx.gluon.HybridBlock):
    """Two branches between convolutions of one pixel, which leave and want blocks of channels."""

    def __init__(self, filters: tuple[int, int], kind: str) -> None:
        super().__init__()
        self.kind = kind
        for at, count in enumerate(filters):
            setattr(self, f"branch{at}", mx.gluon.nn.Conv2D(count, 1, use_bias=False))
        if kind != "rows":
            self.last = mx.gluon.nn.Conv2D(16, 1, use_bias=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        left, right = self.branch0(x), self.branch1(x)
        left, right = F.Activation(left, act_type="relu"), F.LeakyReLU(right, slope=0.5)
        if self.kind != "sum":
            joined = F.concat(left, right, dim=1)
            return self.last(joined) if self.kind == "blocks" else joined
        return self.last(left + right)


def by_hand(x: Any, weights: list[Any], head: Any, kind: str) -> tuple[Any, Any]:
    """The output and the gradient of ``x``, in float64."""

    def product(weight: Any, images: Any) -> Any:
        return np.einsum("fc,nchw->nfhw", weight, images)

    first, second, *more = (w[:, :, 0, 0].astype("float64") for w in weights)
    last = more[0] if more else np.eye(len(first) + len(second))
    a, b = product(first, x), product(second, x)
    left, right = np.where(a > 0, a, 0), np.where(b > 0, b, 0.5 * b)
    joined = left + right if kind == "sum" else np.concatenate([left, right], 1)
    slope = product(last.T, head)
    one, two = (slope, slope) if kind == "sum" else np.split(slope, [len(first)], 1)
    gradient = product(first.T, np.where(a > 0, one, 0))
    gradient += product(second.T, np.where(b > 0, two, 0.5 * two))
    return product(last, joined), gradient


@pytest.mark.parametrize("kind", ["blocks", "rows", "sum"])
@pytest.mark.parametrize("filters", [(16, 32), (32, 32), (16, 24), (5, 16), (48, 8)], ids=str)
@pytest.mark.parametrize("is_static", [True, False])
def test_between_convolutions(filters: tuple[int, int], kind: str, is_static: bool) -> None:
    if kind == "sum":
        filters = (filters[0], filters[0])
    net, x = Net(filters, kind), mx.nd.array(whole(2, 16, 7, 5))
    net.initialize()
    net(x)
    layers = (net.branch0, net.branch1, *([] if kind == "rows" else [net.last]))
    weights = [whole(*layer.weight.shape, seed=2 + n) for n, layer in enumerate(layers)]
    for layer, weight in zip(layers, weights, strict=True):
        layer.weight.set_data(mx.nd.array(weight))
    net.hybridize(static_alloc=is_static, static_shape=is_static)
    x.attach_grad()
    for _ in range(3):  # later steps use memory again
        before = calls()
        with mx.autograd.record():
            y = net(x)
        head = whole(*y.shape, seed=9)
        y.backward(mx.nd.array(head))
        out, gradient = by_hand(x.asnumpy(), weights, head, kind)
        np.testing.assert_array_equal(y.asnumpy(), out)
        np.testing.assert_array_equal(x.grad.asnumpy(), gradient)
        assert calls() >= before + 2
