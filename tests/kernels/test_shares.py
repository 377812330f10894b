"""Tiles of a kernel are shared among threads (kernels/bridge/shares.h): each is computed once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from graphopt.backend.openmp import release_threads
from graphopt.kernels.run import run
from graphopt.kernels.spec_parser import parse

OPENMP = ctypes.CDLL("libgomp.so.1")
#: Sums are of shares of the tiles, so a tile that is left out or computed twice shows.
SPEC = parse(
    "f32[a|b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = exp %2; %4 = reduce_sum %3;"
    " return %3:f32[a,b], %4:f32[a], %2:f32[b] }"
)


@pytest.fixture(autouse=True)
def usual_threads() -> Iterator[None]:
    before = OPENMP.omp_get_max_threads()
    yield
    OPENMP.omp_set_num_threads(before)
    release_threads()


@pytest.mark.parametrize("rows", [1, 3, 37, 257])
def test_any_number_of_threads_computes_the_same(rows: int) -> None:
    rng = np.random.default_rng(rows)
    inputs = [rng.normal(size=shape).astype("f") for shape in ((rows, 1500), (1500,))]
    OPENMP.omp_set_num_threads(1)
    want = run(SPEC, inputs)
    for threads in (2, 3, 7, 64, 70):  # 64 have a share of their own
        OPENMP.omp_set_num_threads(threads)
        for _ in range(20):
            for found, expected in zip(run(SPEC, inputs), want, strict=True):
                np.testing.assert_array_equal(found, expected)
