"""Views of arrays: no copies, in plain order, and as long-lived as somebody has them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from graphopt.backend.arrays import view_of
from graphopt.backend.engines import ExecutorEngine
from graphopt.compat import import_mxnet

mx = import_mxnet()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_a_view_is_the_array(dtype: str) -> None:
    array = mx.nd.arange(6, dtype=dtype).reshape((2, 3))
    view = view_of(array)
    assert view.dtype == dtype
    np.testing.assert_array_equal(view, array.asnumpy())
    array[1] = 7
    array.wait_to_read()
    np.testing.assert_array_equal(view, [[0, 1, 2], [7, 7, 7]])
    view[0] = 9
    np.testing.assert_array_equal(array.asnumpy()[0], [9, 9, 9])


def test_a_view_keeps_its_array() -> None:
    views = [view_of(mx.nd.full((1000,), number)) for number in range(20)]
    gc.collect()
    others: list[Any] = [mx.nd.full((1000,), -1) for _ in range(20)]
    mx.nd.waitall()
    assert [set(view) for view in views] == [{float(number)} for number in range(20)]
    del others


def test_a_view_of_blocks_is_in_plain_order() -> None:
    x, w = mx.nd.random.normal(shape=(2, 16, 9, 9)), mx.nd.random.normal(shape=(32, 16, 3, 3))
    made = mx.nd.Convolution(x, w, kernel=(3, 3), num_filter=32, no_bias=True)
    same = mx.nd.Convolution(x, w, kernel=(3, 3), num_filter=32, no_bias=True)
    np.testing.assert_array_equal(view_of(made), same.asnumpy())


def test_a_view_of_nothing() -> None:
    with mx.util.np_shape(True):
        assert view_of(mx.np.zeros((0, 3))).shape == (0, 3)


def test_an_executor_is_called_before_what_it_was_bound_to_is_there() -> None:
    """The copy of that array, late, took the place of what the call was given."""
    symbol = mx.sym.var("x") * mx.sym.var("w")
    w = mx.nd.ones((64, 64))
    slow = mx.nd.ones((1024, 1024))
    for _ in range(8):
        slow = mx.nd.dot(slow, slow) * 0
    engine = ExecutorEngine(symbol, [slow[:64, :64], w], ["x"], mx.cpu(), "executor")
    found = engine([mx.nd.ones((64, 64)), w])[0]
    assert (found.asnumpy() == 1).all()
