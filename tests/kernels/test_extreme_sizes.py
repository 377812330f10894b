"""Kernels over arrays without elements, and over more elements than 32 bits count."""

from __future__ import annotations

import os

import numpy as np
import pytest

from graphopt.kernels.gradient import differentiate
from graphopt.kernels.run import Request, run
from graphopt.kernels.spec_parser import parse


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_arrays_without_elements(shape: tuple[int, int]) -> None:
    x, w = np.ones(shape, "float32"), np.ones(shape[1], "float32")
    spec = parse("f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = tanh %2; return %3:f32[a,b] }")
    assert run(spec, [x, w])[0].shape == shape
    found = differentiate(spec)
    reads = [
        *(x for _ in found.heads),
        *([x, w][i] for i in found.inputs),
        *(x for _ in found.outputs),
    ]
    for g, like in zip(run(spec, reads, backward=True), (x, w), strict=True):
        assert g.shape == like.shape
        assert not g.any()
    rows = parse("f32[a|b] (f32[a,b]) { %1 = reduce_sum %0; return %1:f32[a] }")
    assert run(rows, [x])[0].tolist() == [0.0] * shape[0]
    softmax = parse("f32[a|b] (f32[a,b]) { %1 = softmax %0; return %1:f32[a,b] }")
    assert run(softmax, [x])[0].shape == shape
    added = np.full(shape[1], 7, "float32")
    sums = parse("f32[a,b] (f32[a,b]) { %1 = exp %0; return %1:f32[b] }")
    run(sums, [x], outputs=[added], requests=[Request.ADD])
    assert added.tolist() == [7.0] * shape[1]


def needs_memory(gigabytes: float) -> None:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free < gigabytes * 1e9:
        pytest.skip(f"needs {gigabytes} GB of free memory")


@pytest.mark.slow
def test_more_elements_than_32_bits_count() -> None:
    needs_memory(6)
    rows, columns = 2**16 + 3, 2**15
    x = np.zeros((rows, columns), "uint8")  # zeros take no memory until they are read
    x[-1] = 2
    x[2**16 - 1, 5] = 7
    spec = parse("f32[a|b] (u8[a,b]) { %1 = reduce_sum %0; return %1:f32[a] }")
    (sums,) = run(spec, [x])
    want = np.zeros(rows, "float32")
    want[-1], want[2**16 - 1] = 2 * columns, 7
    np.testing.assert_array_equal(sums, want)
    flat = parse("f32[a] (u8[a]) { %1 = mul %0 0.5; return %1:f32[] }")
    (total,) = run(flat, [x.reshape(-1)])
    assert total == columns + 3.5


@pytest.mark.slow
def test_more_elements_than_32_bits_count_are_written() -> None:
    needs_memory(6)
    rows, columns = 2**16 + 3, 2**15
    out = np.full((rows, columns), 9, "uint8")
    spec = parse(
        "f32[a,b] (f32[a,1], f32[b]) { %2 = add %0 %1; %3 = mul %2 2.0; return %3:u8[a,b] }"
    )
    left = np.arange(rows, dtype="float32")[:, None] % 50
    right = np.arange(columns, dtype="float32") % 70
    run(spec, [left, right], outputs=[out])
    for row in (0, 1, 2**15, 2**16 - 1, 2**16, rows - 1):
        np.testing.assert_array_equal(out[row], 2 * (left[row] + right))
