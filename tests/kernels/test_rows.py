"""Compiled kernels on rows of any length, and on rows that have numbers."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.kernels import bridge
from graphopt.kernels.emit.cpu import TOGETHER, comes_apart
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.library import kernel
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse

LENGTHS = (1, 5, 15, 16, 17, 150, 160)
GATE = parse(
    "f32[a,b] (f32[a,b], f32[b], f64[a,b]) { %3 = add %0 %1; %4 = sigmoid %3; %5 = mul %4 %2;"
    " return %5:f32[a,b], %4:f32[b] }"
)
#: Two walks along a row, of which the second one is like GATE's.
SOFTMAX = parse("f32[a|b] (f32[a,b]) { %1 = softmax %0; %2 = tanh %1; return %2:f32[a,b] }")
#: An LSTM's, but for a gate.
CELL = parse(
    "f32[a,b] (f32[a,b], f32[b], f32[a,b], f32[a,b]) { %4 = add %0 %1; %5 = tanh %4;"
    " %6 = sigmoid %2; %7 = mul %6 %3; %8 = add %7 %5; %9 = tanh %8;"
    " return %8:f32[a,b], %9:f32[a,b] }"
)
KERNEL = ctypes.CFUNCTYPE(
    None,
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
    KERNEL(made.address)(
        (ctypes.c_int64 * len(addresses))(*addresses),
        (ctypes.c_int64 * len(strides))(*strides),
        rows,
        length,
        scratch.ctypes.data,
    )


def call_piece(spec: KernelSpec, arrays: list[Any], row: int, first: int) -> None:
    """Compute columns of a row of arrays (rows, length) or (length,)."""
    made = kernel(str(spec), backward=False, piece=True)
    parts = [array[row] if array.ndim == 2 else array for array in arrays]
    KERNEL(made.address)(
        (ctypes.c_int64 * len(parts))(*(part.ctypes.data for part in parts)),
        None,
        1,
        first,
        0,
    )


def noise(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng((*shape, seed)).normal(size=shape).astype(dtype)


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


def test_pieces_of_a_row() -> None:
    assert comes_apart(CELL)
    x, forget, bias, state = noise(3, 100), noise(3, 100), noise(100), noise(3, 100)
    new, out = (np.full((3, 100), 7, "f") for _ in range(2))
    arrays = [x, bias, forget, state, new, out]
    want = evaluate(CELL, arrays[:4])
    for first in (0, 16, 84):
        call_piece(CELL, arrays, 1, first)
    for got, right in zip((new, out), want, strict=True):
        for computed in (slice(0, 32), slice(84, 100)):
            np.testing.assert_allclose(got[1, computed], right[1, computed], rtol=1e-5, atol=1e-6)
        assert (got[1, 32:84] == 7).all()
        assert (got[[0, 2]] == 7).all()


def test_pieces_have_the_bits_of_rows() -> None:
    """What a recurrence computes is the same, however much of it a matrix unit left time for."""
    arrays = [noise(3, 96), noise(96), *(noise(3, 96, seed=n) for n in (1, 2))]
    found = []
    for whole in (True, False):
        results = [np.zeros((3, 96), "f") for _ in range(2)]
        if whole:
            call(CELL, [*arrays, *results], [None] * 6, 3, 96)
        else:
            for row in range(3):
                for first in range(0, 96, 16):
                    call_piece(CELL, [*arrays, *results], row, first)
        found.append(results)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "text",
    [
        str(GATE),  # a sum, and another dtype
        str(SOFTMAX),
        "f64[a,b] (f64[a,b]) { %1 = tanh %0; return %1:f64[a,b] }",
        "f32[a,b] (f32[a,b], f32[a,1]) { %2 = add %0 %1; return %2:f32[a,b] }",
    ],
)
def test_what_does_not_come_apart(text: str) -> None:
    assert not comes_apart(parse(text))


def test_the_bridge_cuts_rows_into_pieces_of_the_same_size() -> None:
    header = (Path(bridge.__file__).parent / "meanwhile.h").read_text()
    assert f"kPiece = {TOGETHER};" in header


SUMS = parse(
    "f32[a|b] (f32[a,b]) { %1 = reduce_sum %0; %2 = reduce_max %0; return %1:f32[a], %2:f32[a] }"
)
#: Its output is summed over, as the gradient of what rows have one of.
TWICE = parse("f32[a,b] (f32[a,b]) { %1 = mul %0 2.0; return %1:f32[a] }")


def sums_of(x: Any) -> tuple[Any, Any, Any]:
    total, largest, twice = np.zeros((3, len(x), 1), "float32")
    call(SUMS, [x, total, largest], None, *x.shape)
    call(TWICE, [x, twice], None, *x.shape)
    return total[:, 0], largest[:, 0], twice[:, 0]


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 262_144, 270_337, 3_000_001])
def test_sums_of_long_rows_keep_their_digits(length: int) -> None:
    x = np.full((2, length), 0.3, "float32")
    x[1] = noise(length) ** 2
    total, largest, twice = sums_of(x)
    exact = x.sum(axis=1, dtype="float64")
    np.testing.assert_allclose(total, exact, rtol=3e-6)
    np.testing.assert_allclose(twice, 2 * exact, rtol=3e-6)
    np.testing.assert_array_equal(largest, x.max(axis=1))


def test_sums_of_long_rows_are_infinite_or_no_number() -> None:
    x = np.ones((2, 20_000), "float32")
    x[0, 5000], x[1, 5000] = np.inf, np.nan
    for found in sums_of(x):
        np.testing.assert_array_equal(found, [np.inf, np.nan])
