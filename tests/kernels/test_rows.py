"""Compiled kernels on rows of any length, and on rows that have numbers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from graphopt.kernels.interpret import evaluate
from graphopt.kernels.library import kernel
from graphopt.kernels.spec import KernelSpec, parse

LENGTHS = (1, 5, 15, 16, 17, 150, 160)
GATE = parse(
    "f32[a,b] (f32[a,b], f32[b], f64[a,b]) { %3 = add %0 %1; %4 = sigmoid %3; %5 = mul %4 %2;"
    " return %5:f32[a,b], %4:f32[b] }"
)
#: Two walks along a row, of which the second one is like GATE's.
SOFTMAX = parse("f32[a|b] (f32[a,b]) { %1 = softmax %0; %2 = tanh %1; return %2:f32[a,b] }")
KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
)


def call(
    spec: KernelSpec, arrays: list[Any], indices: list[Any] | None, rows: int, length: int
) -> None:
    """Run the compiled kernel on arrays (rows, length) or (length,)."""
    made = kernel(str(spec), backward=False, index=indices is not None)
    addresses = [array.ctypes.data for array in arrays]
    if indices is not None:
        addresses += [0 if index is None else index.ctypes.data for index in indices]
    strides = [array.shape[1] if array.ndim == 2 else 0 for array in arrays]
    scratch = np.empty((max(made.scratch_rows, 1), length), spec.dtype)
    result, exception = ctypes.create_string_buffer(16), ctypes.c_void_p()
    KERNEL(made.address)(
        ctypes.addressof(result),
        ctypes.addressof(exception),
        (ctypes.c_int64 * len(addresses))(*addresses),
        (ctypes.c_int64 * len(strides))(*strides),
        rows,
        length,
        scratch.ctypes.data,
    )


def noise(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("length", LENGTHS)
def test_rest_of_a_row(length: int) -> None:
    x, bias, scale = noise(3, length), noise(length), noise(3, length, dtype="float64")
    # Nothing may be written beside the rows.
    room, sums = np.full((3, length + 16), 7, "f"), noise(length)
    want = evaluate(GATE, [x, bias, scale])
    before = sums.copy()
    call(GATE, [x, bias, scale, room, sums], None, 3, length)
    np.testing.assert_allclose(room[:, :length], want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums, before + want[1], rtol=1e-5, atol=1e-6)
    assert (room[:, length:] == 7).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_rest_of_a_row_that_is_walked_twice(length: int) -> None:
    x, room = noise(4, length), np.full((4, length + 16), 7, "f")
    call(SOFTMAX, [x, room], None, 4, length)
    want = evaluate(SOFTMAX, [x])[0]
    np.testing.assert_allclose(room[:, :length], want, rtol=1e-5, atol=1e-6)
    assert (room[:, length:] == 7).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_with_numbers(length: int) -> None:
    x, bias, scale = noise(5, length), noise(length), noise(3, length, dtype="float64")
    read, written = np.array([4, 0, 4], "int32"), np.array([5, 2, 0], "int32")
    room, sums = np.full((6, length), 7, "f"), np.zeros(length, "f")
    call(GATE, [x, bias, scale, room, sums], [read, None, None, written, None], 3, length)
    want = evaluate(GATE, [x[read], bias, scale])
    np.testing.assert_allclose(room[written], want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums, want[1], rtol=1e-5, atol=1e-6)
    assert (np.delete(room, written, axis=0) == 7).all()
