"""MXNet's nearest upsampling and its gradient, computed by the bridge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from tests.kernels.test_rectifiers import calls, whole

mx = import_mxnet()


def stretched(x: Any, scale: int) -> Any:
    return x.repeat(scale, 2).repeat(scale, 3)


def shrunk(head: Any, scale: int) -> Any:
    n, c, h, w = head.shape
    return head.reshape(n, c, h // scale, scale, w // scale, scale).sum((3, 5))


def nearest(x: Any, scale: int) -> Any:
    return mx.nd.UpSampling(x, scale=scale, sample_type="nearest")


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 16, 1, 7), (3, 5, 40, 41)], ids=str)
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_rows(shape: tuple[int, ...], scale: int) -> None:
    x, before = mx.nd.array(whole(*shape)), calls()
    x.attach_grad()
    with mx.autograd.record():
        y = nearest(x, scale)
    head = whole(*y.shape, seed=1)
    y.backward(mx.nd.array(head))
    np.testing.assert_array_equal(y.asnumpy(), stretched(x.asnumpy(), scale))
    np.testing.assert_array_equal(x.grad.asnumpy(), shrunk(head, scale))
    assert calls() == before + 2


class Net(mx.gluon.HybridBlock):
    """Upsampling between convolutions of one pixel, which leave and want blocks of channels."""

    def __init__(self, filters: int, scale: int, behind: bool) -> None:
        super().__init__()
        self.scale = scale
        self.first = mx.gluon.nn.Conv2D(filters, 1, use_bias=False)
        self.last = mx.gluon.nn.Conv2D(16, 1, use_bias=False) if behind else None

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = F.UpSampling(self.first(x), scale=self.scale, sample_type="nearest")
        return x if self.last is None else self.last(x)


@pytest.mark.parametrize("filters", [16, 32, 8, 24, 5, 4])
@pytest.mark.parametrize("scale", [2, 3])
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("request_", ["write", "add"])
def test_between_convolutions(filters: int, scale: int, behind: bool, request_: str) -> None:
    net, x = Net(filters, scale, behind), mx.nd.array(whole(2, 16, 6, 5))
    net.initialize()
    net(x)
    layers = [net.first, *([net.last] if behind else [])]
    weights = [whole(*layer.weight.shape, seed=2 + n) for n, layer in enumerate(layers)]
    for layer, weight in zip(layers, weights, strict=True):
        layer.weight.set_data(mx.nd.array(weight))
    first, last = weights[0][:, :, 0, 0], weights[1][:, :, 0, 0] if behind else np.eye(filters)
    net.hybridize(static_alloc=True, static_shape=True)
    x.attach_grad(request_)
    for times in (1, 2, 3):  # later steps use memory again
        before = calls()
        with mx.autograd.record():
            y = net(x)
        head = whole(*y.shape, seed=9)
        y.backward(mx.nd.array(head))
        made = np.einsum("fc,nchw->nfhw", first, x.asnumpy())
        want = np.einsum("fc,nchw->nfhw", last, stretched(made, scale))
        np.testing.assert_array_equal(y.asnumpy(), want)
        slope = shrunk(np.einsum("fc,nfhw->nchw", last, head), scale)
        gradient = np.einsum("fc,nfhw->nchw", first, slope)
        np.testing.assert_array_equal(
            x.grad.asnumpy(), gradient * (times if request_ == "add" else 1)
        )
        assert calls() == before + 2


def test_gradients_that_are_added() -> None:
    x, head = mx.nd.array(whole(2, 16, 3, 3)), whole(2, 16, 6, 6, seed=1)
    x.attach_grad("add")
    for _ in range(2):
        with mx.autograd.record():
            y = nearest(x, 2)
        y.backward(mx.nd.array(head))
    np.testing.assert_array_equal(x.grad.asnumpy(), 2 * shrunk(head, 2))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes_are_left_to_mxnet(dtype: str) -> None:
    x, before = mx.nd.array(whole(1, 2, 3, 3), dtype=dtype), calls()
    np.testing.assert_array_equal(nearest(x, 2).asnumpy(), stretched(x.asnumpy(), 2))
    assert calls() == before


def test_several_images_are_left_to_mxnet() -> None:
    x, small, before = mx.nd.array(whole(1, 2, 4, 4)), mx.nd.array(whole(1, 3, 2, 2)), calls()
    y = mx.nd.UpSampling(x, small, scale=2, sample_type="nearest", num_args=2)
    want = np.concatenate([stretched(x.asnumpy(), 2), stretched(small.asnumpy(), 4)], 1)
    np.testing.assert_array_equal(y.asnumpy(), want)
    assert calls() == before


def test_bilinear_is_left_to_mxnet() -> None:
    x = mx.nd.Convolution(  # leaves blocks of channels
        mx.nd.ones((1, 16, 5, 5)),
        mx.nd.array(np.eye(16).reshape(16, 16, 1, 1)),
        kernel=(1, 1),
        num_filter=16,
        no_bias=True,
    )
    weight, before = mx.nd.full((16, 1, 4, 4), 0.25), calls()
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.UpSampling(x, weight, scale=2, sample_type="bilinear", num_filter=16, num_args=2)
    y.backward()
    assert y.shape == (1, 16, 10, 10)
    assert (y.asnumpy()[:, :, 2:-2, 2:-2] == 1).all()
    assert (x.grad.asnumpy()[:, :, 1:-1, 1:-1] == 4).all()
    assert calls() == before


def test_pictures_that_do_not_fit_are_refused() -> None:
    with pytest.raises(mx.MXNetError):
        nearest(mx.nd.ones((2, 3)), 2).wait_to_read()
