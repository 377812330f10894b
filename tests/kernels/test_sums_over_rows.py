"""Gradients that are added up over many rows: they keep their digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


class Shifted(mx.gluon.HybridBlock):
    """Data and one number a column, or one in all."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        with self.name_scope():
            self.shift = self.params.get("shift", shape=shape, init="ones")

    def hybrid_forward(self, F: Any, x: Any, shift: Any) -> Any:
        return F.broadcast_mul(F.sigmoid(F.broadcast_add(x, shift)), x)


def gradient(rows: int, columns: int, shape: tuple[int, ...], requests: str = "write") -> Any:
    """Of the shift, for data of equal numbers; and what it should be."""
    net = Shifted(shape)
    net.initialize()
    net.shift.grad_req = requests
    fast = graphopt.optimize(net)
    x = mx.nd.full((rows, columns), 0.3)
    for _ in range(2):
        with mx.autograd.record():
            y = fast(x)
        y.backward()
    chance = 1 / (1 + np.exp(-np.float64(1.3)))
    slope = chance * (1 - chance) * np.float32(0.3)
    times = (2 if requests == "add" else 1) * rows * columns / net.shift.data().size
    return net.shift.grad().asnumpy(), slope * times


@pytest.mark.parametrize("requests", ["write", "add"])
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 7), (1023, 5), (1025, 5), (40_000, 33), (2_000_000, 2)]
)
def test_columns_of_equal_numbers(rows: int, columns: int, requests: str) -> None:
    found, want = gradient(rows, columns, (1, columns), requests)
    np.testing.assert_allclose(found, np.full((1, columns), want), rtol=2e-5)


def test_one_number_in_all() -> None:
    found, want = gradient(500_000, 6, (1, 1))
    np.testing.assert_allclose(found, [[want]], rtol=2e-5)
