"""Infinity, what is no number, and the largest and smallest numbers are what they are in MXNet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.spec_parser import parse
from tests.kernels.gate_support import data, gate, is_fused

mx = import_mxnet()


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_nan_and_infinity(mode: str) -> None:
    net = gate()
    fast = graphopt.optimize(net, mode=mode)
    x = data(6, 4).asnumpy()
    for row, value in enumerate((np.nan, np.inf, -np.inf, 3e38, 1e-45)):
        x[row, row % 4] = value
    with np.errstate(all="ignore"):
        want, got = net(mx.nd.array(x)).asnumpy(), fast(mx.nd.array(x)).asnumpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(want[:3]).all()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert np.isfinite(got[5]).all()


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("relu", {}),
        ("tanh", {}),
        ("sigmoid", {}),
        ("exp", {}),
        ("Activation", {"act_type": "softrelu"}),
        ("LeakyReLU", {"act_type": "gelu"}),
    ],
)
def test_special_values_are_mxnets(op: str, attrs: dict[str, Any]) -> None:
    class One(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.clip(getattr(F, op)(x * 2.0, **attrs) + 1.0, -1e30, 1e30)

    x = mx.nd.array([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [-0.0, 1e-45, 3e38]])
    net = One()
    fast = graphopt.optimize(net)
    want, got = net(x).asnumpy(), fast(x).asnumpy()
    assert is_fused(fast)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_softmax_of_nan_is_nan_in_its_row_only() -> None:
    class Soft(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.softmax(x * 2.0, axis=-1) + 1.0

    net = Soft()
    fast = graphopt.optimize(net)
    x = mx.nd.array([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [4, 1, 2]])
    want, got = net(x).asnumpy(), fast(x).asnumpy()
    assert is_fused(fast)
    # All of the row: oneDNN makes zeros of the finite ones beside.
    assert np.isnan(got[np.isnan(want)]).all()
    np.testing.assert_allclose(got[2:], want[2:], rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("smooth_l1", {"scalar": 2.0}), ("clip", {"a_min": -1.0, "a_max": 2.0})],
)
def test_gradients_at_special_values_are_mxnets(op: str, attrs: dict[str, Any]) -> None:
    class One(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return getattr(F, op)(x * 1.0, **attrs) * 3.0

    def gradient(net: Any) -> Any:
        x = mx.nd.array([np.inf, -np.inf, 3e38, -3e38, 2, -1, 0.25, 0.1, np.nan, 5, -5])
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward(mx.nd.array([1] * 9 + [np.inf, np.nan]))
        return x.grad.asnumpy()

    net = One()
    fast = graphopt.optimize(net)
    want, got = gradient(net), gradient(fast)
    assert is_fused(fast)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("size", [1e25, 1.0, 1e-21, 1e-25, 1e-37, 0.0, np.inf])
def test_norms_of_any_size_are_mxnets(size: float) -> None:
    class Norm(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.norm(x * 1.0, ord=2, axis=1)

    def called(net: Any) -> tuple[Any, Any]:
        x = data(6, 40)
        x[:, 3] = size
        x[2:] *= min(size, 1e25)
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward()
        return y.asnumpy(), x.grad.asnumpy()

    net = Norm()
    fast = graphopt.optimize(net)
    want, got = called(net), called(fast)
    assert is_fused(fast)
    for found, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_gradient_of_a_norm_reads_the_norm() -> None:
    spec = parse(
        "f32[a|b] (f32[a,b]) { %1 = square %0; %2 = reduce_sum %1; %3 = sqrt %2; %4 = div 0.5 %3;"
        " %5 = with_slope %3 %2 %4; return %5:f32[a] }"
    )
    gradient = differentiate(spec)
    assert gradient.outputs == (0,)
    assert gradient.spec is not None
    assert "reduce_sum" not in str(gradient.spec)


@pytest.mark.parametrize("op", ["relu", "Activation"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_gradient_of_relu_at_nan_is_mxnets(op: str, dtype: str) -> None:
    """NaN, so that checks of gradients find it, but for oneDNN's."""

    class One(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            attrs = {"act_type": "relu"} if op == "Activation" else {}
            return getattr(F, op)(x * 2.0 + 1.0, **attrs) * 3.0

    fast = graphopt.optimize(One())
    found = []
    for net in (One(), fast):
        x = mx.nd.array([np.nan, 1, -1, -0.5, np.inf, -np.inf], dtype=dtype)
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward()
        found.append(x.grad.asnumpy())
    assert is_fused(fast)
    assert np.isnan(found[0][0]) == (op == "relu" or dtype != "float32")
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)


def test_the_gradient_of_numpys_relu_at_nan_is_nan() -> None:
    class One(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.npx.relu(x * 2.0 + 1.0) * 3.0

    with mx.util.np_shape(True), mx.util.np_array(True):
        found = []
        for net in (One(), graphopt.optimize(One())):
            x = mx.np.array([np.nan, 1, -1, -0.5])
            x.attach_grad()
            with mx.autograd.record():
                y = net(x)
            y.backward()
            found.append(x.grad.asnumpy())
    assert np.isnan(found[0][0])
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
