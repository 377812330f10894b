"""Codes of reshapes, and what MXNet makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.reshape import codes_for, reshaped

mx = import_mxnet()


@pytest.mark.parametrize(
    ("source", "target", "codes"),
    [
        ((4, 6), (4, 6, 1), (0, 0, 1)),
        ((4, 6), (4, 1, 6), (0, -4, 1, -1)),
        ((4, 6), (1, 4, 6), (-4, 1, -1, 0)),
        ((9, 1, 6), (1, 9, 6), (-4, 1, -1, -3)),
        ((1, 9, 6), (9, 1, 6), (-3, -4, 1, -1)),
        ((8, 5, 6), (2, 4, 5, 6), (-4, -1, 4, 0, 0)),
        ((2, 4, 5, 6), (8, 5, 6), (-3, 0, 0)),
        ((2, 3, 4), (2, 12), (0, -3)),
        ((2, 3, 4), (24,), (-1,)),
        ((2, 12), (2, 3, 4), (0, -4, -1, 4)),
        ((6,), (6,), (0,)),
        ((2, 3, 4), (4, 6), (-1, 6)),
        ((2, 3, 4, 5), (24, 5), (-1, 5)),
        ((2, 3, 4, 5), (2, 5, 12), (0, 5, 12)),
        ((), (1,), (1,)),
        ((1,), (), ()),
        ((2, 4, 1, 8), (2, 1, 32), (-4, -1, 1, 32)),
        ((6, 4, 6, 6), (2, 3, 144), (-4, -1, 3, 144)),
    ],
)
def test_codes(source: tuple[int, ...], target: tuple[int, ...], codes: tuple[int, ...]) -> None:
    assert codes_for(source, target) == codes
    assert reshaped(source, codes) == target


def factored(size: int, count: int) -> Iterator[tuple[int, ...]]:
    """The shapes of so many axes that an array of that size may have."""
    if count == 0:
        yield from [()] if size == 1 else []
        return
    for first in range(1, size + 1):
        if size % first == 0:
            yield from ((first, *rest) for rest in factored(size // first, count - 1))


@pytest.mark.parametrize("size", [1, 4, 6, 12])
def test_mxnet_makes_the_target_of_them(size: int) -> None:
    shapes = [shape for count in range(1, 5) for shape in factored(size, count)]
    array = mx.nd.arange(size)
    for source, target in itertools.product(shapes, shapes):
        codes = codes_for(source, target)
        assert reshaped(source, codes) == target
        made = mx.nd.Reshape(array.reshape(source), shape=codes)
        assert made.shape == target, (source, codes)


@pytest.mark.parametrize("codes", [(-4, -1, 1, -1), (-4, 1, -1, -1), (0, -4, 2, 2, -1), (-2, -1)])
def test_what_mxnet_infers_in_another_place_is_refused(codes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="another dimension"):
        reshaped((2, 4, 1, 8), codes)


def test_joins_behind_an_axis_of_one() -> None:
    """MXNet's own codes for it lose the last axis."""

    class Net(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            turned = F.reshape(F.transpose(x, (0, 2, 1, 3)), (0, 0, -1))
            return F.max(turned, axis=2), turned

    net, x = Net(), mx.nd.random.uniform(shape=(2, 4, 1, 8))
    for found, wanted in zip(graphopt.optimize(net)(x), net(x), strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_array_equal(found.asnumpy(), wanted.asnumpy())
