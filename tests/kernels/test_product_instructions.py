"""Products compiled for each set of instructions that this processor has, against numpy."""

from __future__ import annotations

import ctypes
import math
from typing import ClassVar

import numpy as np
import pytest

from tests.kernels.instructions import ORDER, compiled
from tests.tiers import one_of

ERF = np.vectorize(math.erf)
ACTIVATIONS = ("none", "relu", "gelu")
_GUARD = 32


# Compiling takes long, and what the processor has runs in tests of all dense layers.
@pytest.fixture(scope="module", params=one_of(len(ORDER), ORDER))
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    name = request.param
    library = compiled(name, "product.cc", tmp_path_factory.mktemp(name))
    library.run.restype = ctypes.c_int64
    return library


@pytest.fixture
def run(library: ctypes.CDLL):
    def call(x, w, b, activation: str, threads: int) -> np.ndarray:
        (rows, depth), units = x.shape, len(w)
        place, to = guarded(rows * units)
        arrays = [None if a is None else ctypes.c_void_p(a.ctypes.data) for a in (x, w, b, to)]
        numbers = (rows, depth, units, threads, ACTIVATIONS.index(activation))
        assert library.run(*arrays, *map(ctypes.c_int64, numbers)) > 0
        check_guards(place)
        return to.reshape(rows, units).copy()

    return call


@pytest.fixture
def multiply(library: ctypes.CDLL):
    def call(left, right, flags: tuple[bool, bool], *, adds: bool, apart: int = 0) -> np.ndarray:
        rows, depth = left.shape[::-1] if flags[0] else left.shape
        units = right.shape[0 if flags[1] else 1]
        left, right = (
            np.pad(a, ((0, 0), (0, apart)), constant_values=np.nan) if apart else a
            for a in (left, right)
        )
        place, to = guarded(rows * (units + apart))
        at = [ctypes.c_void_p(a.ctypes.data) for a in (left, right, to)]
        turned = [ctypes.c_int64(flag) for flag in flags]
        extents = map(ctypes.c_int64, (rows, depth, units, apart, adds))
        library.multiply(at[0], turned[0], at[1], turned[1], at[2], *extents)
        check_guards(place)
        made = to.reshape(rows, units + apart)
        assert (made[:, units:] == 7.25).all()
        return made[:, :units].copy()

    return call


def guarded(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory, and so much in the middle of it that may be written."""
    place = np.full(size + 2 * _GUARD, 7.25, np.float32)
    return place, place[_GUARD : _GUARD + size]


def check_guards(place: np.ndarray) -> None:
    """Nothing was written before or behind."""
    assert (place[:_GUARD] == 7.25).all()
    assert (place[-_GUARD:] == 7.25).all()


def activated(x: np.ndarray, activation: str) -> np.ndarray:
    if activation == "relu":
        return np.maximum(x, 0)
    return 0.5 * x * (1 + ERF(x * math.sqrt(0.5))) if activation == "gelu" else x


def test_all_rows_of_a_chunk_and_odd_depths_and_units(run) -> None:
    rng = np.random.default_rng(0)
    sizes = [(rows, int(rng.integers(1, 800)), int(rng.integers(1, 100))) for rows in range(1, 71)]
    sizes += [(rows, 1, units) for rows in (1, 9) for units in (1, 3, 7, 15, 17, 31, 47, 49)]
    sizes += [(3, 5000, 3), (9, 769, 50), (150, 1600, 150)]
    for at, (rows, depth, units) in enumerate(sizes):
        x = rng.standard_normal((rows, depth), np.float32)
        w = rng.standard_normal((units, depth), np.float32) / np.float32(math.sqrt(depth))
        b = rng.standard_normal(units, np.float32) if at % 2 else None
        product = x.astype(float) @ w.T.astype(float) + (0 if b is None else b)
        activation = ACTIVATIONS[at % 3]
        want = activated(product, activation)
        for threads in (1, 2, 64):
            found = run(x, w, b, activation, threads)
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=2e-5, err_msg=str(x.shape))


def test_numbers_that_are_not_finite_or_tiny(run) -> None:
    x = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-40, -1e-40, 3e38, -3e38], np.float32)
    one = np.ones((1, 1), np.float32)
    found = {name: run(x[:, None], one, None, name, 1)[:, 0] for name in ACTIVATIONS}
    np.testing.assert_array_equal(found["none"], x)
    np.testing.assert_array_equal(found["relu"], np.maximum(x, 0))
    # As MXNet's LeakyReLU: minus infinity times a probability of zero is no number.
    want = np.array([np.inf, np.nan, np.nan, 0, 0, 0.5e-40, -0.5e-40, 3e38, 0], np.float32)
    np.testing.assert_allclose(found["gelu"], want, rtol=1e-6, atol=1e-44)
    assert not np.signbit(found["relu"][3])


def test_matrices_of_any_layout_and_what_they_are_added_to(multiply) -> None:
    rng = np.random.default_rng(1)
    sizes = [(1, 1, 1), (128, 64, 128), (16, 16, 16), (48, 32, 80), (130, 769, 17), (9, 1600, 50)]
    # Rows that matrices are not packed for, and rows of those that share cache sets.
    sizes += [(64, 100, 50), (65, 100, 50), (16, 30, 1024), (17, 30, 2048), (5, 2000, 33)]
    sizes += [tuple(map(int, rng.integers(1, 70, 3))) for _ in range(40)]
    for at, (rows, depth, units) in enumerate(sizes):
        left = rng.standard_normal((rows, depth), np.float32)
        right = rng.standard_normal((depth, units), np.float32) / np.float32(math.sqrt(depth))
        for flags in ((False, False), (False, True), (True, False), (True, True)):
            adds = bool((at + sum(flags)) % 2)
            given = [
                np.ascontiguousarray(a.T if flag else a)
                for a, flag in zip((left, right), flags, strict=True)
            ]
            found = multiply(*given, flags, adds=adds, apart=(0, 1, 48)[at % 3])
            want = left.astype(float) @ right + 7.25 * adds
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=2e-5, err_msg=str(left.shape))


class MemoryInUse(ctypes.Structure):
    """What glibc's mallinfo2 tells, in bytes."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def test_large_products_do_not_keep_their_memory(multiply) -> None:
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        pytest.skip("the C library does not tell")
    tell.restype = MemoryInUse

    def megabytes() -> float:
        now = tell()
        return (now.uordblks + now.hblkhd) / 2**20

    rows, depth, units = 65, 4096, 3072  # 48 MiB, for more rows than are multiplied unpacked
    left, right = np.ones((rows, depth), np.float32), np.ones((depth, units), np.float32)
    small = np.ones((rows, rows), np.float32)
    multiply(small, small, (False, False), adds=False)
    before = megabytes()
    assert (multiply(left, right, (False, False), adds=False) == depth).all()
    assert megabytes() > before + 40
    multiply(small, small, (False, False), adds=False)
    assert megabytes() < before + 10
