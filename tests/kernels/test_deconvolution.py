"""MXNet's Deconvolution, whose bias the bridge adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()

CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 16, 5, 6), {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1), "num_filter": 32}),
    ((2, 16, 5, 6), {"kernel": (2, 2), "stride": (2, 2), "num_filter": 16}),
    ((2, 16, 5, 6), {"kernel": (3, 3), "num_filter": 8}),
    ((1, 3, 7, 4), {"kernel": (3, 3), "stride": (2, 2), "adj": (1, 1), "num_filter": 5}),
    ((2, 8, 4, 4), {"kernel": (3, 3), "pad": (1, 1), "num_group": 2, "num_filter": 16}),
    ((2, 8, 4, 4), {"kernel": (3, 3), "dilate": (2, 2), "num_filter": 21}),
    ((2, 16, 9), {"kernel": (4,), "stride": (2,), "pad": (1,), "num_filter": 16}),
    ((2, 16, 3, 4, 5), {"kernel": (2, 2, 2), "stride": (2, 2, 2), "num_filter": 16}),
    ((1, 2, 1, 1), {"kernel": (1, 1), "num_filter": 1}),
]


def calls() -> int:
    mx.nd.waitall()
    return int(bridge.load(mx).graphopt_mended_calls())


def arrays(shape: tuple[int, ...], options: dict[str, Any], dtype: str = "float32") -> list[Any]:
    """Images, filters and a bias."""
    rng = np.random.default_rng(0)
    wide = options["num_filter"] // options.get("num_group", 1)
    shapes = [shape, (shape[1], wide, *options["kernel"]), (options["num_filter"],)]
    return [mx.nd.array(rng.standard_normal(each), dtype=dtype) for each in shapes]


def along_channels(bias: Any, rank: int) -> Any:
    return bias.reshape((1, -1) + (1,) * (rank - 2))


@pytest.mark.parametrize(("shape", "options"), CASES)
def test_the_same_sums_come_out(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x, weight, bias = arrays(shape, options)
    sums = mx.nd.Deconvolution(x, weight, no_bias=True, **options)
    before = calls()
    found = mx.nd.Deconvolution(x, weight, bias, no_bias=False, **options).asnumpy()
    assert calls() == before + 1
    expected = mx.nd.broadcast_add(sums, along_channels(bias, len(shape))).asnumpy()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("shape", "options"), CASES)
def test_gradients(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    def gradients(whole: bool) -> list[np.ndarray]:
        x, weight, bias = given = arrays(shape, options)
        for array in given:
            array.attach_grad()
        with mx.autograd.record():
            if whole:
                y = mx.nd.Deconvolution(x, weight, bias, no_bias=False, **options)
            else:
                sums = mx.nd.Deconvolution(x, weight, no_bias=True, **options)
                y = mx.nd.broadcast_add(sums, along_channels(bias, len(shape)))
            loss = (y * y).sum()
        loss.backward()
        return [y.asnumpy(), *(array.grad.asnumpy() for array in given)]

    for found, wanted in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_other_types_and_sums_stay_mxnets() -> None:
    shape, options = CASES[0]
    before = calls()
    mx.nd.Deconvolution(*arrays(shape, options, "float64"), no_bias=False, **options).wait_to_read()
    assert calls() == before
    given = arrays(shape, options)
    names = ["x", "weight", "bias"]
    symbol = mx.sym.Deconvolution(*map(mx.sym.var, names), no_bias=False, **options)
    twice = symbol + symbol  # the second is added to the first
    bound = twice.bind(mx.cpu(), dict(zip(names, given, strict=True)))
    expected = 2 * mx.nd.Deconvolution(*given, no_bias=False, **options).asnumpy()
    np.testing.assert_allclose(bound.forward()[0].asnumpy(), expected, rtol=1e-6)


def test_between_convolutions() -> None:
    """Where oneDNN leaves images in blocks."""
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(32, 3, padding=1, activation="relu"),
        nn.Conv2DTranspose(32, 4, 2, 1, bias_initializer=mx.init.Normal(1)),
        nn.Activation("relu"),
        nn.Conv2D(16, 3, padding=1, bias_initializer=mx.init.Normal(1)),
        nn.Conv2DTranspose(16, 2, 2, bias_initializer=mx.init.Normal(1)),
    )
    net.initialize(mx.init.Xavier())
    x = mx.nd.array(np.random.default_rng(1).standard_normal((2, 16, 9, 8)))
    one_by_one = x
    for child in net:
        one_by_one = mx.nd.array(child(one_by_one).asnumpy())
    net.hybridize(static_alloc=True, static_shape=True)
    for _ in range(2):
        before = calls()
        found = net(x).asnumpy()
        assert calls() >= before + 2
        np.testing.assert_allclose(found, one_by_one.asnumpy(), rtol=1e-4, atol=1e-5)
