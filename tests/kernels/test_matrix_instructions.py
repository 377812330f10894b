"""Products of recurrences compiled for instructions that tests else do not see, against numpy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from graphopt.kernels.bridge import build
from tests.kernels.instructions import ORDER, compiled

SIZES = [(1, 1, 1), (8, 16, 48), (9, 7, 17), (3, 150, 33), (130, 5, 257), (20, 257, 150), (0, 3, 4)]
NAMES = {"float32": "float", "float64": "double"}


@pytest.fixture(scope="module", params=ORDER)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    name = request.param
    if name == build.instructions() != "base":
        pytest.skip("recurrences run with these, and compiling takes long")
    library = compiled(name, "matrix.cc", tmp_path_factory.mktemp(name))
    for kind in NAMES.values():
        getattr(library, f"packed_{kind}").restype = ctypes.c_int64
    return library


def at(array: Any) -> ctypes.c_void_p | None:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def sizes_of(*sizes: int) -> Any:
    return (ctypes.c_int64 * len(sizes))(*sizes)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("dtype", NAMES)
def test_products(library: ctypes.CDLL, dtype: str, indexed: bool) -> None:
    rng = np.random.default_rng(0)
    near = 1e-5 if dtype == "float32" else 1e-13
    kind = NAMES[dtype]
    for number, (rows, depth, width) in enumerate(SIZES):
        adds, turned = number % 2, number % 3 == 0
        read = rng.integers(0, rows + 2, rows).astype(np.int32) if indexed else None
        written = rng.permutation(rows + 2)[:rows].astype(np.int32) if indexed else None
        x = rng.normal(size=(rows + 2, depth)).astype(dtype)
        right = (rng.normal(size=(depth, width)) / depth**0.5).astype(dtype)
        given = np.ascontiguousarray(right.T if turned else right)
        strides = (1, depth) if turned else (width, 1)
        to = np.full((rows + 2, width + 5), 7.25, dtype)
        want = to.astype(float)
        product = x[np.arange(rows) if read is None else read].astype(float) @ right
        places = np.arange(rows) if written is None else written
        want[places, :width] = product + (7.25 if adds else 0)
        count = getattr(library, f"packed_{kind}")(ctypes.c_int64(depth), ctypes.c_int64(width))
        packed = np.full(count + 16, 7.25, dtype)
        by = [ctypes.c_int64(stride) for stride in strides]
        getattr(library, f"multiply_{kind}")(
            at(x), at(read), at(given), *by, at(packed), at(to), at(written),
            sizes_of(rows, depth, width, width + 5), ctypes.c_int64(adds),
        )  # fmt: skip
        np.testing.assert_allclose(to, want, rtol=near, atol=near, err_msg=str(SIZES[number]))
        assert (packed[count:] == 7.25).all()


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("dtype", NAMES)
def test_sums_of_outer_products(library: ctypes.CDLL, dtype: str, indexed: bool) -> None:
    rng = np.random.default_rng(1)
    near = 3e-5 if dtype == "float32" else 1e-12
    for rows, left_width, right_width in SIZES:
        left = rng.normal(size=(rows + 1, left_width)).astype(dtype)
        right = rng.normal(size=(rows + 1, right_width)).astype(dtype)
        numbers = [rng.integers(0, rows + 1, rows).astype(np.int32) for _ in range(2)]
        read = numbers if indexed else [None, None]
        to = np.full((left_width, right_width + 3), 7.25, dtype)
        want = to.astype(float)
        rows_of = [np.arange(rows) if index is None else index for index in read]
        # Each segment is given twice.
        want[:, :right_width] += 2 * left[rows_of[0]].astype(float).T @ right[rows_of[1]]
        getattr(library, f"outer_{NAMES[dtype]}")(
            at(left), at(read[0]), at(right), at(read[1]), at(to),
            sizes_of(rows, left_width, right_width, right_width + 3),
        )  # fmt: skip
        np.testing.assert_allclose(to, want, rtol=near, atol=near * 3)
