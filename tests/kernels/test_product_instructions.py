"""Products compiled for each set of instructions that this processor has, against numpy."""

from __future__ import annotations

import ctypes
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

from graphopt.kernels.bridge import build

ERF = np.vectorize(math.erf)
ACTIVATIONS = ("none", "relu", "gelu")
_ORDER = ("base", "avx2", "avx512")
_GUARD = 32


@pytest.fixture(scope="module", params=_ORDER)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    name = request.param
    if _ORDER.index(name) > _ORDER.index(build.instructions()):
        pytest.skip(f"this processor has no {name}")
    made = tmp_path_factory.mktemp(name) / "product.so"
    options = ["-std=c++17", "-fPIC", "-shared", "-w", f"-I{build.HERE}"]
    options += [*build._VECTORS["product.cc"], *build._INSTRUCTIONS[name]]
    sources = [str(build.HERE / "product.cc"), str(Path(__file__).with_name("product_driver.cc"))]
    subprocess.run([build.compiler(), *options, *sources, "-o", str(made)], check=True)
    library = ctypes.CDLL(str(made))
    library.run.restype = ctypes.c_int64

    def call(x, w, b, activation: str, threads: int) -> np.ndarray:
        (rows, depth), units = x.shape, len(w)
        size = rows * units
        place = np.full(size + 2 * _GUARD, 7.25, np.float32)
        to = place[_GUARD : _GUARD + size]
        arrays = [None if a is None else ctypes.c_void_p(a.ctypes.data) for a in (x, w, b, to)]
        numbers = (rows, depth, units, threads, ACTIVATIONS.index(activation))
        assert library.run(*arrays, *map(ctypes.c_int64, numbers)) > 0
        assert (place[:_GUARD] == 7.25).all()
        assert (place[_GUARD + size :] == 7.25).all()
        return to.reshape(rows, units).copy()

    return call


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
        for threads in (1, 2, 64):
            found = run(x, w, b, activation, threads)
            np.testing.assert_allclose(
                found, activated(product, activation), rtol=1e-5, atol=2e-5, err_msg=str(x.shape)
            )


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
