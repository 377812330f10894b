"""Rows by index on GPUs, in numba's simulator or on a GPU; as cuda_cases.py."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="there is no numba.cuda")

from numba import config
from numba import cuda as numba_cuda

if not config.ENABLE_CUDASIM and not numba_cuda.is_available():
    pytest.skip("for numba's simulator of CUDA, or a GPU", allow_module_level=True)

from graphopt.errors import InputError
from graphopt.kernels.cuda import rows as cuda_rows
from graphopt.kernels.cuda.rows import inverse, owners
from tests.kernels.cuda_support import assert_near, noise, on_device, quick_switches
from tests.tiers import one_of

__all__ = ["quick_switches"]  # a fixture


def gather_rows(source: Any, index: Any, *, out: Any = None) -> Any:
    source, index, out = on_device(source, index, out)
    return cuda_rows.gather_rows(source, index, out=out)


def segment_sum(source: Any, begin: Any, order: Any = None, *, out: Any = None) -> Any:
    source, begin, order, out = on_device(source, begin, order, out)
    return cuda_rows.segment_sum(source, begin, order, out=out)


#: One column, less than a warp, a block, and more than the blocks of a grid, in either dtype.
CASES = one_of(3, product([1, 7, 64, 150], ["float32", "float64"]))


def index_of(count: int, rows: int) -> Any:
    return np.random.default_rng(count).integers(0, rows, count).astype(np.int32)


def segments_of(count: int) -> Any:
    """Pointers of segments of up to three rows; the first and the last have none."""
    sizes = np.random.default_rng(count).integers(0, 4, count)
    sizes[[0, -1]] = 0
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def one_by_one(source: Any, begin: Any, order: Any) -> Any:
    sums = np.zeros((len(begin) - 1, source.shape[1]), source.dtype)
    for s in range(len(sums)):
        for r in order[begin[s] : begin[s + 1]]:
            sums[s] += source[r]
    return sums


@pytest.mark.parametrize(("columns", "dtype"), CASES)
def test_gather_rows(columns: int, dtype: str) -> None:
    for rows, count in ((9, 1), (1, 5), (23, 40), (9, 0)):
        source, index = noise(rows, columns, dtype=dtype), index_of(count, rows)
        got = gather_rows(source, index).copy_to_host()
        np.testing.assert_array_equal(got, source[index])
        assert got.dtype == dtype


@pytest.mark.parametrize(("columns", "dtype"), CASES)
def test_segment_sum(columns: int, dtype: str) -> None:
    for begin in (segments_of(30), np.array([0, 1], "int32"), np.zeros(4, "int32")):
        source = noise(begin[-1], columns, dtype=dtype)
        order = np.random.default_rng(columns).permutation(begin[-1]).astype("int32")
        for given in (None, order):
            got = segment_sum(source, begin, given).copy_to_host()
            # In this order, and so bit by bit.
            want = one_by_one(source, begin, np.arange(len(source)) if given is None else given)
            np.testing.assert_array_equal(got, want)
            assert got.dtype == dtype
    assert segment_sum(source, np.zeros(1, "int32")).shape == (0, columns)


def test_a_thousand_segments() -> None:
    begin = segments_of(1000)
    source = noise(begin[-1], 3)
    got = segment_sum(source, begin).copy_to_host()
    np.testing.assert_array_equal(got, one_by_one(source, begin, np.arange(len(source))))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_rows(dtype: str) -> None:
    rows, columns = 12, 37
    index = index_of(50, rows - 2)  # nobody reads the last rows
    begin, order = inverse(index, rows)
    np.testing.assert_array_equal(owners(begin, order), index)
    head, want = noise(50, columns, dtype=dtype), np.zeros((rows, columns), dtype)
    np.add.at(want, index, head)
    np.testing.assert_array_equal(segment_sum(head, begin, order).copy_to_host(), want)
    # <segment_sum(x), head> is <x, gradient>.
    for given in (None, order):
        x, head = noise(50, columns, dtype=dtype), noise(rows, columns, dtype=dtype, seed=1)
        sums = segment_sum(x, begin, given).copy_to_host()
        slopes = gather_rows(head, owners(begin, given)).copy_to_host()
        assert_near(np.sum(sums * head), np.sum(x * slopes), "float32")


def test_inverse() -> None:
    begin, order = inverse(np.array([2, 0, 2, 3]), 5)
    np.testing.assert_array_equal(begin, [0, 1, 1, 3, 4, 4])
    np.testing.assert_array_equal(order, [1, 0, 2, 3])
    assert begin.dtype == order.dtype == "int32"
    begin, order = inverse(np.empty(0, "int64"), 2)
    np.testing.assert_array_equal(begin, [0, 0, 0])
    assert not owners(begin, order).size
    np.testing.assert_array_equal(owners([0, 0, 2, 3]), [1, 1, 2])
    for index in ([-1, 0], [0, 5]):
        with pytest.raises(InputError, match="an index of 5 rows cannot have"):
            inverse(np.array(index), 5)
    with pytest.raises(InputError, match="float64"):
        inverse(np.zeros(3), 5)
    for begin in ([1, 2], [0, 2, 1], []):
        with pytest.raises(InputError, match="begin at 0 and do not descend"):
            owners(np.array(begin, "int32"))
    for wrong in ([0, 0, 1], [0, 1, 3], [0, 1]):
        with pytest.raises(InputError, match="each of 3 rows once"):
            owners(np.array([0, 1, 3]), np.array(wrong))


def test_rows_are_written_to() -> None:
    source, index = noise(5, 8), index_of(6, 5)
    out = numba_cuda.to_device(np.full((6, 8), np.nan, "float32"))
    assert gather_rows(source, index, out=out) is out
    np.testing.assert_array_equal(out.copy_to_host(), source[index])
    out = numba_cuda.to_device(np.full((2, 8), np.nan, "float32"))
    assert segment_sum(source, np.array([0, 5, 5], "int32"), out=out) is out
    assert not out.copy_to_host()[1].any()


def test_rows_that_do_not_fit() -> None:
    source, index = noise(5, 8), index_of(6, 5)
    with pytest.raises(InputError, match="float16, not float32 or float64"):
        gather_rows(source.astype("float16"), index)
    with pytest.raises(InputError, match=r"is not i32\[c\]"):
        gather_rows(source, index.astype("int64"))
    with pytest.raises(InputError, match="not C-contiguous"):
        gather_rows(noise(8, 5).T, index)
    with pytest.raises(InputError, match="5 is not 6"):
        gather_rows(source, index, out=np.empty((5, 8), "float32"))
    with pytest.raises(InputError, match=r"is not i32\[d\]"):
        segment_sum(source, index, index[:, None])
    with pytest.raises(InputError, match="one pointer more"):
        segment_sum(source, index[:0])
    with pytest.raises(InputError, match=r"is not f32\[a,b\]"):
        segment_sum(source, index, out=np.empty((5, 8), "float64"))
