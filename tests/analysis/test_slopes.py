"""Which operators MXNet makes NaN of a head gradient of zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from graphopt.analysis.slopes import may_be_steep
from graphopt.batching.operators import handle
from graphopt.compat import import_mxnet
from graphopt.ir.ops import Gradient, Kind, info, names

mx = import_mxnet()
_POINTWISE = (Kind.ELEMENTWISE, Kind.BROADCAST)
#: At and inside of the edges of what operators are defined for.
_POINTS = [[0.0, 1.0], [0.5, 2.0]]


@pytest.fixture(autouse=True)
def _as_numpy() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def gradients(name: str, attrs: dict[str, str]) -> list[Any]:
    """Of all that an operator reads, from a head gradient of zero."""
    arrays = [mx.np.array(_POINTS) for _ in info(name).arguments]
    for array in arrays:
        array.attach_grad()
    with mx.autograd.record():
        keys, values = tuple(attrs), tuple(attrs.values())
        found = mx.nd._internal._imperative_invoke(
            handle(name), arrays, keys, values, None, True, False
        )
    found = found if isinstance(found, list) else [found]
    mx.autograd.backward(found, [mx.np.zeros(array.shape) for array in found])
    return [array.grad.asnumpy() for array in arrays]


def pointwise() -> list[str]:
    """Those that have a gradient and need no attributes but a scalar."""
    return [
        name
        for name in names()
        if info(name).kind in _POINTWISE
        and info(name).pure
        and info(name).gradient not in (Gradient.NONE, Gradient.NEITHER)
        and info(name).arguments
    ]


@pytest.mark.parametrize("scalar", ["0.5", "2"])
def test_those_that_make_nan_of_zero_are_known(scalar: str) -> None:
    unknown = []
    for name in pointwise():
        attrs = {"scalar": scalar} if name.endswith("_scalar") else {}
        try:
            found = gradients(name, attrs)
        except mx.MXNetError:
            continue  # it needs other attributes
        if any(np.isnan(array).any() for array in found) and not may_be_steep(name, attrs):
            unknown.append(name)
    assert unknown == []


@pytest.mark.parametrize(("scalar", "is_steep"), [("2.0", False), (1, False), (0.5, True)])
def test_powers(scalar: object, is_steep: bool) -> None:
    assert may_be_steep("_npi_power_scalar", {"scalar": scalar}) is is_steep


@pytest.mark.parametrize("name", ["tanh", "softmax", "_npi_multiply", "_div_scalar", "_npi_exp"])
def test_others_are_not_steep(name: str) -> None:
    assert not may_be_steep(name, {})
