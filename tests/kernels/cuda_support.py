"""What tests of CUDA kernels share: arrays on the device, or in numba's simulator."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda as numba_cuda


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """The simulator waits for its threads by asking over and over: let them run meanwhile."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def noise(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def assert_near(got: Any, want: Any, dtype: str, what: str = "") -> None:
    """Equal up to the roundings of a sum of terms as large as the largest result."""
    tolerance = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}.get(dtype, 0)
    assert got.shape == want.shape, what
    both = [np.asarray(x, "float64") for x in (got, want)]
    np.testing.assert_array_equal(*map(np.isnan, both), err_msg=what)
    scale = 1 + np.max(np.abs(both[1]), initial=0, where=np.isfinite(both[1]))
    np.testing.assert_allclose(*both, rtol=10 * tolerance, atol=tolerance * scale, err_msg=what)


def on_device(*arrays: Any) -> list[Any]:
    """Arrays where kernels read them; those that are there already, or none, as they are."""
    return [numba_cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in arrays]
