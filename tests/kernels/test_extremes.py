"""The largest and least of computed elements, and what is equal to them: found, whatever rounds.

A kernel that fuses products into sums where it looks for the largest, and not where it compares,
finds no element equal to it in many rows: they have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.rounding import rounds_alike
from graphopt.kernels.spec_parser import parse

mx = import_mxnet()

Function = Callable[[Any, Any, Any], Any]
FORMS: dict[str, Function] = {
    "gelu": lambda F, x, y: F.LeakyReLU(x, act_type="gelu"),
    "gate": lambda F, x, y: F.tanh(x) * F.sigmoid(y),
    "products": lambda F, x, y: x * y + F.exp(y) * F.tanh(x),
    "sum": lambda F, x, y: 0.5 * x + 0.7 * F.tanh(y),
    "swish": lambda F, x, y: x * F.sigmoid(x) - 0.3 * y,
    "softmax": lambda F, x, y: F.softmax(x * y + x, axis=-1),
    "normalized": lambda F, x, y: F.broadcast_sub(x * y, F.mean(x * y, axis=-1, keepdims=True)) * y,
}


class Net(mx.gluon.HybridBlock):
    """What ``read`` makes of a form of two inputs."""

    def __init__(self, form: Function, read: Function) -> None:
        super().__init__()
        self.form, self.read = form, read

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        return self.read(F, self.form(F, x, y), y)


def both(net: Any, arrays: list[Any], *, precise: bool = False) -> list[list[Any]]:
    """Output and gradients of a net, and of what is optimized of it."""
    found = []
    for made in (net, graphopt.optimize(net, strict=True, precise=precise)):
        for array in arrays:
            array.attach_grad()
        with mx.autograd.record():
            out = made(*arrays)
        out.backward()
        found.append([value.asnumpy() for value in (out, *(array.grad for array in arrays))])
    return found


def data(shape: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(len(shape))
    return [mx.nd.array(rng.normal(size=shape), dtype=dtype) for _ in "xy"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("most", ["max", "min"])
@pytest.mark.parametrize("form", FORMS)
def test_each_row_has_a_gradient(form: str, most: str, dtype: str) -> None:
    def read(F: Any, h: Any, _y: Any) -> Any:
        return getattr(F, most)(h, axis=-1)

    plain, ours = both(Net(FORMS[form], read), data((32, 50), dtype))
    for want, got in zip(plain, ours, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["gelu", "gate", "products", "sum"])
def test_each_column_has_a_gradient(form: str) -> None:
    plain, ours = both(Net(FORMS[form], lambda F, h, y: F.max(h, axis=1)), data((3, 20, 40)))
    for want, got in zip(plain, ours, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_each_row_has_an_element_that_is_its_largest(form: str) -> None:
    def read(F: Any, h: Any, y: Any) -> Any:
        return F.broadcast_equal(h, F.max(h, axis=-1, keepdims=True)) * y

    plain, ours = both(Net(FORMS[form], read), data((32, 50)))
    for want, got in zip(plain, ours, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


HEAD = "f32[a|b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = add %2 %0; "


@pytest.mark.parametrize(
    ("spec", "alike"),
    [
        (HEAD + "%4 = reduce_max %3; return %4:f32[a] }", True),
        (HEAD + "%4 = reduce_min %3; %5 = sub %3 %4; return %5:f32[a,b] }", True),
        (HEAD + "%4 = softmax %3; return %4:f32[a,b] }", False),
        (HEAD + "%4 = reduce_max %0; %5 = sub %3 %4; return %5:f32[a,b] }", False),
        (HEAD + "%4 = reduce_sum %3; return %4:f32[a] }", False),
    ],
    ids=["largest", "least", "softmax", "of an input", "sum"],
)
def test_only_what_compares_rounds_alike(spec: str, alike: bool) -> None:
    assert rounds_alike(parse(spec)) == alike
    gradient = differentiate(parse(spec)).spec
    assert gradient is not None
    assert rounds_alike(gradient) == alike


def test_a_softmax_that_is_written_out_may_round_as_it_likes() -> None:
    spec = HEAD + "%4 = reduce_max %3; %5 = sub %3 %4; %6 = exp %5; return %6:f32[a,b] }"
    assert not rounds_alike(parse(spec))
