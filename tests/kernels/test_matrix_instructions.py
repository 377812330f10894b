"""Products of recurrences compiled for instructions that tests else do not see, against numpy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from graphopt.kernels.bridge import build
from tests.kernels.instructions import ORDER, compiled

#: Around the extents of panels, tiles and what a tile multiplies.
SIZES = [
    *((1, 1, 1), (8, 16, 48), (9, 7, 17), (3, 150, 33), (130, 5, 257), (20, 257, 150), (0, 3, 4)),
    *((33, 32, 96), (65, 59, 97), (64, 58, 49), (257, 100, 33), (17, 27, 193)),
]
NAMES = {"float32": "float", "float64": "double"}


#: What the matrix unit multiplies, and what it is asked for.
UNITS = {"thirds": "bf16", "halves": "fp16"}


#: Products in pairs, by which instructions.
PAIRED = {f"paired {name}": name for name in ORDER}
VECTORS, TILES, PAIRS = range(3)


#: What other tests run on processors that have no more; compiling the others takes long as well.
QUICK = ("base", "paired base")


@pytest.fixture(
    scope="module",
    params=[
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in (*ORDER, *UNITS, *PAIRED)
    ],
)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    unit = UNITS.get(request.param)
    name = "avx512" if unit else PAIRED.get(request.param, request.param)
    kind = TILES if unit else PAIRS if request.param in PAIRED else VECTORS
    if request.param == build.instructions() != "base":
        pytest.skip("recurrences run with these, and compiling takes long")
    library = compiled(name, "matrix.cc", tmp_path_factory.mktemp(name))
    with pytest.MonkeyPatch.context() as patch:
        if unit:
            patch.setenv("GRAPHOPT_AMX", unit)
        if library.choose(kind) != kind:
            pytest.skip("there is no matrix unit here")
        if (library.usual_factor() > 1) != (unit == "fp16"):
            pytest.skip("it multiplies no float16")
    library.unit = "pairs" if kind == PAIRS else unit
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


@pytest.mark.parametrize("odd", [None, "inf"])
@pytest.mark.parametrize("dtype", NAMES)
def test_products_that_are_added_up(library: ctypes.CDLL, dtype: str, odd: str | None) -> None:
    rng = np.random.default_rng(4)
    near = 1e-5 if dtype == "float32" else 1e-13
    kind = NAMES[dtype]
    depths = [(32, 100), (100, 32), (7, 64, 1), (33, 58, 3, 27), (5, 0)]
    counts = (1, 17, 40, 70, 9, 257, 260, 280, 15)
    for number, depth in enumerate(depths * 4):
        rows, width, adds = counts[number % 9], (48, 100, 33)[number % 3], number % 2
        x = [rng.normal(size=(rows + 2, d)).astype(dtype) for d in depth]
        right = [rng.normal(size=(d, width)).astype(dtype) for d in depth]
        if odd:
            x[0][0, 0] = np.inf  # what the matrix unit cannot split
        index = [rng.integers(0, rows + 2, rows).astype(np.int32) if f % 2 else None
                 for f in range(len(depth))]  # fmt: skip
        # Nothing may be written behind the rows.
        to = np.full((rows + 32, width + 5), 7.25, dtype)
        want = to.astype(float)
        taken = [a[:rows] if i is None else a[i] for a, i in zip(x, index, strict=True)]
        with np.errstate(all="ignore"):
            total = sum(a.astype(float) @ b for a, b in zip(taken, right, strict=True))
        want[:rows, :width] = total + (7.25 if adds else 0)
        sizes = [getattr(library, f"packed_{kind}")(ctypes.c_int64(d), ctypes.c_int64(width))
                 for d in depth]  # fmt: skip
        packed = [np.zeros(size + 16, dtype) for size in sizes]
        lists = [(ctypes.c_void_p * len(depth))(*map(at, arrays))
                 for arrays in (x, index, right, packed)]  # fmt: skip
        getattr(library, f"add_up_{kind}")(
            *lists[:3], ctypes.c_int64(len(depth)), lists[3], at(to),
            sizes_of(rows, width, width + 5, *depth), ctypes.c_int64(adds),
        )  # fmt: skip
        np.testing.assert_allclose(to, want, rtol=near, atol=near * 30, err_msg=str(depth))


@pytest.mark.parametrize("odd", [None, "rows", "matrix"])
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("dtype", NAMES)
def test_products_of_the_same_rows(
    library: ctypes.CDLL, dtype: str, indexed: bool, odd: str | None
) -> None:
    rng = np.random.default_rng(5)
    near = 1e-5 if dtype == "float32" else 1e-13
    for number, (rows, depth, width) in enumerate([*SIZES, (280, 40, 132)]):
        cut, adds = width // 3, [number % 2, number // 2 % 2]
        if not (rows and cut):
            continue
        read = rng.integers(0, rows, rows).astype(np.int32) if indexed else None
        written = rng.permutation(rows).astype(np.int32) if indexed else None
        x = rng.normal(size=(rows, depth)).astype(dtype)
        right = (rng.normal(size=(depth, width)) / depth**0.5).astype(dtype)
        if odd:  # what the matrix unit cannot split
            (x if odd == "rows" else right)[-1, -1] = np.inf
        # Nothing may be written behind the rows, or behind their ends.
        to = np.full((rows + 32, width + 5), 7.25, dtype)
        want = to.astype(float)
        with np.errstate(all="ignore"):
            product = (x if read is None else x[read]).astype(float) @ right.astype(float)
        product[:, :cut] += 7.25 * adds[0]
        product[:, cut:] += 7.25 * adds[1]
        want[np.arange(rows) if written is None else written, :width] = product
        packed = [
            np.zeros(
                getattr(library, f"packed_{NAMES[dtype]}")(
                    ctypes.c_int64(depth), ctypes.c_int64(columns)
                )
                + 16,
                dtype,
            )
            for columns in (cut, width - cut)
        ]
        getattr(library, f"alike_{NAMES[dtype]}")(
            at(x), at(read), at(right), (ctypes.c_void_p * 2)(*map(at, packed)), at(to),
            at(written), sizes_of(rows, depth, width, width + 5, cut), sizes_of(*adds),
        )  # fmt: skip
        np.testing.assert_allclose(
            to, want, rtol=near, atol=near, err_msg=str((rows, depth, width))
        )
        # Alone they have the same bits, whether or not others could be split.
        for first, columns in ((0, cut), (cut, width - cut)):
            alone = np.full((rows + 32, width + 5), 7.25, dtype)
            part = np.ascontiguousarray(right[:, first : first + columns])
            getattr(library, f"multiply_{NAMES[dtype]}")(
                at(x), at(read), at(part),
                ctypes.c_int64(columns), ctypes.c_int64(1), at(packed[first > 0]), at(alone),
                at(written), sizes_of(rows, depth, columns, width + 5),
                ctypes.c_int64(adds[first > 0]),
            )  # fmt: skip
            np.testing.assert_array_equal(alone[:, :columns], to[:, first : first + columns])


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


@pytest.mark.parametrize("width", [6, 70, 200])
def test_sums_of_outer_products_of_uneven_rows(library: ctypes.CDLL, width: int) -> None:
    """Gradients of samples from 1e-8 to 1e4, units of other sizes, and some that learn nothing."""
    rng = np.random.default_rng(8)
    rows, left_width = 600, 150
    left = rng.normal(size=(rows, left_width)) * 10 ** rng.uniform(-8, 4, (rows, 1))
    left *= 10 ** rng.uniform(-6, 3, left_width)
    right = rng.normal(size=(rows, width)) * 10 ** rng.uniform(-5, 5, width)
    left[:, [3, 77]] = right[:, width // 2] = 0
    left, right = (x.astype(np.float32) for x in (left, right))
    to = np.zeros((left_width, width), np.float32)
    library.outer_float(
        at(left), None, at(right), None, at(to), sizes_of(rows, left_width, width, width)
    )
    exact = 2 * left.astype(float).T @ right.astype(float)
    lengths = 2 * np.outer(*(np.linalg.norm(x.astype(float), axis=0) for x in (left, right)))
    assert (np.abs(to - exact) <= 1.5e-7 * lengths).all()


@pytest.mark.parametrize("size", [(40, 70, 100), (520, 600, 100)], ids=str)
@pytest.mark.parametrize("place", ["from", "right", "left rows", "none"])
def test_what_cannot_be_split_is_multiplied_all_the_same(
    library: ctypes.CDLL, place: str, size: tuple[int, int, int]
) -> None:
    """Infinities, what is no number, and what would be rounded to infinity."""
    rng = np.random.default_rng(2)
    rows, depth, width = size
    x = rng.normal(size=(rows, depth)).astype(np.float32)
    right = rng.normal(size=(depth, width)).astype(np.float32)
    odd = {"from": x, "right": right, "left rows": x}.get(place, np.zeros((9, 9), np.float32))
    odd[3, 5], odd[4, 6], odd[8, 1] = np.inf, np.nan, np.finfo(np.float32).max
    to = np.zeros((rows, width), np.float32)
    count = library.packed_float(ctypes.c_int64(depth), ctypes.c_int64(width))
    packed = np.zeros(count + 16, np.float32)
    by = ctypes.c_int64(width), ctypes.c_int64(1)
    library.multiply_float(
        at(x), None, at(right), *by, at(packed), at(to), None,
        sizes_of(rows, depth, width, width), ctypes.c_int64(0),
    )  # fmt: skip
    with np.errstate(all="ignore"):
        want = (x.astype(float) @ right.astype(float)).astype(np.float32)
    same = np.isfinite(want)
    np.testing.assert_allclose(to[same], want[same], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.isnan(to), np.isnan(want))
    np.testing.assert_array_equal(to[np.isinf(want)], want[np.isinf(want)])
    sums = np.zeros((depth, depth), np.float32)
    library.outer_float(at(x), None, at(x), None, at(sums), sizes_of(rows, depth, depth, depth))
    with np.errstate(all="ignore"):
        want = (2 * (x.astype(float).T @ x.astype(float))).astype(np.float32)
    same = np.isfinite(want)
    np.testing.assert_allclose(sums[same], want[same], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.isnan(sums), np.isnan(want))
    np.testing.assert_array_equal(sums[np.isinf(want)], want[np.isinf(want)])


def test_an_illegal_instruction_is_survived(library: ctypes.CDLL) -> None:
    """As one for float16 is, where the unit has none."""
    assert library.run_an_illegal_one() == 0


def multiplied(library: ctypes.CDLL, x: np.ndarray, right: np.ndarray) -> np.ndarray:
    (rows, depth), width = x.shape, right.shape[1]
    to = np.zeros((rows, width), np.float32)
    count = library.packed_float(ctypes.c_int64(depth), ctypes.c_int64(width))
    packed = np.zeros(count + 16, np.float32)
    library.multiply_float(
        at(x), None, at(right), ctypes.c_int64(width), ctypes.c_int64(1), at(packed), at(to),
        None, sizes_of(rows, depth, width, width), ctypes.c_int64(0),
    )  # fmt: skip
    return to


@pytest.mark.parametrize("times", [1, 8, 1 << 22])
def test_products_multiplied_by_a_power_of_two(library: ctypes.CDLL, times: int) -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(70, 100)).astype(np.float32)
    right = (rng.normal(size=(100, 130)) / 10).astype(np.float32)
    x[5], x[6], x[7, 3] = 0, x[6] * 1e-9, np.inf
    library.multiply_by(times)
    found = multiplied(library, x, right)
    library.multiply_by(1)
    np.testing.assert_array_equal(found, multiplied(library, x, right) * np.float32(times))


@pytest.mark.parametrize("side", ["rows", "columns"])
@pytest.mark.parametrize("power", [-30, -20, -12, -6, -2, 2, 4, 6, 12, 20, 36])
def test_rows_and_columns_of_any_size(library: ctypes.CDLL, side: str, power: int) -> None:
    """Each is as exact as if all others were of its size, and has the same bits."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(70, 100)).astype(np.float32)
    right = (rng.normal(size=(100, 130)) / 10).astype(np.float32)
    size = np.where(rng.uniform(size=70 if side == "rows" else 130) < 0.5, 1, 10.0**power)
    plain = multiplied(library, x, right)
    by = np.exp2(np.round(np.log2(size))).astype(np.float32)
    if side == "rows":
        found = multiplied(library, x * by[:, None], right) / by[:, None]
    else:
        found = multiplied(library, x, right * by) / by
    exact = x.astype(float) @ right.astype(float)
    np.testing.assert_allclose(found, exact, atol=1e-6 * np.abs(exact).max())
    # In pairs a row's numbers are moved by what suits all columns, so they are rounded elsewhere.
    same = 6e-7 if library.unit == "pairs" else 3e-7
    np.testing.assert_allclose(found, plain, atol=same * np.abs(exact).max())


@pytest.mark.parametrize("powers", [(-25, 35), (-3, 35), (25, -33), (35, -25), (-14, -14)])
def test_small_rows_and_large_columns(library: ctypes.CDLL, powers: tuple[int, int]) -> None:
    """Nothing in between is infinite, or zero, where the result is not."""
    rng = np.random.default_rng(9)
    x = (rng.normal(size=(70, 100)) * 10.0 ** powers[0]).astype(np.float32)
    right = (rng.normal(size=(100, 130)) * 10.0 ** powers[1]).astype(np.float32)
    size = np.abs(x).astype(float) @ np.abs(right).astype(float)
    error = np.abs(multiplied(library, x, right) - x.astype(float) @ right.astype(float))
    assert (error <= 1e-6 * size if min(powers) > -30 else error <= 1e-4 * size).all()


@pytest.mark.parametrize("power", [0, -2, -4, -7, -10])
def test_numbers_of_different_sizes_in_a_row(library: ctypes.CDLL, power: int) -> None:
    """Small ones are as exact as the largest beside them lets a float32 sum be."""
    rng = np.random.default_rng(8)
    sizes = np.where(rng.uniform(size=100) < 0.1, 1, 10.0**power)
    x = (rng.normal(size=(70, 100)) * sizes).astype(np.float32)
    right = (rng.normal(size=(100, 130)) * sizes[rng.permutation(100), None]).astype(np.float32)
    exact = x.astype(float) @ right.astype(float)
    # Of halves of the smallest, what is below 2^-28 of the largest is cut off.
    most = np.abs(x).max(1, keepdims=True) * np.abs(right).astype(float).sum(0)
    most += np.abs(x).astype(float).sum(1, keepdims=True) * np.abs(right).max(0)
    size = np.abs(x).astype(float) @ np.abs(right).astype(float)
    error = np.abs(multiplied(library, x, right) - exact)
    # Of pairs, what is below the last digit of rows and columns of average size.
    sizes = np.sqrt((right.astype(float) ** 2).mean(1))
    norm = np.linalg.norm(x * sizes, axis=1, keepdims=True) * np.linalg.norm(
        right / sizes[:, None], axis=0
    )
    lost = {"fp16": 2.0**-28 * most, "pairs": 3e-7 * norm}.get(library.unit, 0)
    rounded = 6e-7 if library.unit else 8e-7  # vectors round after each of a hundred sums
    assert (error <= rounded * size + lost).all()


@pytest.mark.parametrize("draw", ["normal", "positive", "rectified", "features"])
def test_pairs_round_about_as_little_as_vectors(library: ctypes.CDLL, draw: str) -> None:
    """The root mean square of errors, as shares of the sum of all products' sizes."""
    if library.unit != "pairs":
        pytest.skip("it is compared with the others")
    rng = np.random.default_rng(10)
    x, right = rng.normal(size=(64, 300)), rng.normal(size=(300, 96))
    if draw == "positive":
        x, right = np.abs(x), np.abs(right)
    elif draw == "rectified":
        x = np.maximum(x, 0)
    elif draw == "features":  # that were never brought to one size, and weights that make up for it
        by = 10.0 ** rng.integers(-8, 9, 300)
        x, right = x * by, right / by[:, None]
    x, right = x.astype(np.float32), right.astype(np.float32)
    exact = x.astype(float) @ right.astype(float)
    size = np.abs(x).astype(float) @ np.abs(right).astype(float)
    found = {}
    for kind in (VECTORS, PAIRS):
        library.choose(kind)
        error = (multiplied(library, x, right) - exact) / size
        found[kind] = float(np.sqrt(np.mean(error**2)))
    assert found[PAIRS] <= 3 * found[VECTORS]


@pytest.mark.parametrize("draw", ["normal", "uniform", "positive", "lognormal"])
def test_the_unit_rounds_less_than_vectors(library: ctypes.CDLL, draw: str) -> None:
    """The root mean square of errors, as shares of the sum of all products' sizes."""
    if library.choose(TILES) != TILES:
        pytest.skip("there is no matrix unit here")
    rng = np.random.default_rng(3)
    rows, depth, width = 64, 300, 96

    def numbers(*shape: int) -> np.ndarray:
        drawn = rng.normal(size=shape)
        if draw == "lognormal":
            drawn = np.sign(drawn) * np.exp(3 * rng.normal(size=shape))
        elif draw != "normal":
            drawn = rng.uniform(-1 if draw == "uniform" else 0, 1, shape)
        return drawn.astype(np.float32)

    x, right = numbers(rows, depth), numbers(depth, width)
    exact = x.astype(float) @ right.astype(float)
    size = np.abs(x).astype(float) @ np.abs(right).astype(float)
    found = {}
    for tiles in (VECTORS, TILES):
        library.choose(tiles)
        to = multiplied(library, x, right)
        found[tiles] = float(np.sqrt(np.mean(((to - exact) / size) ** 2)))
    assert 0 < found[1] < 0.8 * found[0]
