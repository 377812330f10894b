"""The gradient of MXNet's LRN, computed by the bridge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from tests.kernels.test_rectifiers import calls, whole

mx = import_mxnet()


def around(x: Any, size: int) -> Any:
    """Sums of channels and those around."""
    half = size // 2
    padded = np.pad(x, ((0, 0), (half, half), (0, 0), (0, 0)))
    return sum(padded[:, at : at + x.shape[1]] for at in range(size))


def gradient(
    x: Any, head: Any, nsize: int, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2
) -> Any:
    x, head = x.astype("float64"), head.astype("float64")
    s = knorm + alpha / nsize * around(x * x, nsize)
    return head * s**-beta - 2 * alpha * beta / nsize * x * around(
        head * x * s ** (-beta - 1), nsize
    )


def learnt(x: Any, head: Any, request: str = "write", **options: Any) -> Any:
    array = mx.nd.array(x)
    array.attach_grad(request)
    with mx.autograd.record():
        y = mx.nd.LRN(array, **options)
    y.backward(mx.nd.array(head))
    return array.grad.asnumpy()


@pytest.mark.parametrize(
    "shape", [(1, 3, 2, 2), (2, 96, 5, 7), (3, 20, 40, 41), (1, 2, 1, 1)], ids=str
)
@pytest.mark.parametrize(
    "options",
    [
        {"nsize": 5},
        {"nsize": 1, "alpha": 0.5},
        {"nsize": 3, "alpha": 1.0, "knorm": 1.0, "beta": 0.5},
        {"nsize": 7, "alpha": 2.0, "knorm": 0.5, "beta": 1.0},
    ],
    ids=str,
)
def test_against_numpy(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    rng, before = np.random.default_rng(0), calls()
    x, head = (rng.normal(size=shape).astype("float32") for _ in range(2))
    got = learnt(x, head, **options)
    np.testing.assert_allclose(got, gradient(x, head, **options), rtol=1e-5, atol=1e-6)
    assert calls() == before + 1


@pytest.mark.parametrize("request_", ["add", "write"])
def test_another_power_and_sums_are_left_to_mxnet(request_: str) -> None:
    x, head, before = whole(1, 6, 3, 3), whole(1, 6, 3, 3, seed=1), calls()
    options = {"nsize": 3, "alpha": 0.5, "beta": 0.6 if request_ == "write" else 0.75}
    got = learnt(x, head, request_, **options)
    np.testing.assert_allclose(got, gradient(x, head, **options), rtol=1e-4, atol=1e-5)
    assert calls() == before


@pytest.mark.parametrize("filters", [32, 24, 5])
def test_between_convolutions(filters: int) -> None:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(filters, 1, use_bias=False))
    net.add(mx.gluon.nn.HybridLambda(lambda F, x: F.LRN(x, nsize=5, alpha=0.5)))
    net.add(mx.gluon.nn.Conv2D(16, 1, use_bias=False))
    net.initialize()
    x = mx.nd.array(whole(2, 16, 6, 7))
    net(x)
    weights = [whole(*net[at].weight.shape, seed=at) * 0.1 for at in (0, 2)]
    for at, weight in zip((0, 2), weights, strict=True):
        net[at].weight.set_data(mx.nd.array(weight))
    net.hybridize(static_alloc=True, static_shape=True)
    x.attach_grad()
    for _ in range(2):
        before = calls()
        with mx.autograd.record():
            y = net(x)
        head = whole(*y.shape, seed=9)
        y.backward(mx.nd.array(head))
        made = np.einsum("fc,nchw->nfhw", weights[0][:, :, 0, 0], x.asnumpy())
        slope = np.einsum("fc,nfhw->nchw", weights[1][:, :, 0, 0], head)
        want = gradient(made, slope, nsize=5, alpha=0.5)
        want = np.einsum("fc,nfhw->nchw", weights[0][:, :, 0, 0], want)
        np.testing.assert_allclose(x.grad.asnumpy(), want, rtol=1e-4, atol=1e-5)
        assert calls() == before + 1
