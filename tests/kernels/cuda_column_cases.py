"""CUDA kernels whose rows lie side by side, run as cuda_cases.py is."""

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

from graphopt.kernels import cuda
from graphopt.kernels.cuda.plan import ADD, SKIP, WRITE
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.spec_parser import parse
from tests.kernels.column_specs import SPECS
from tests.kernels.cuda_cases import check, inputs_of, outputs
from tests.kernels.cuda_support import assert_near, noise, on_device, quick_switches
from tests.tiers import one_of

__all__ = ["quick_switches"]  # a fixture

#: Fewer than a warp, more than one, none.
SPACES = [(2, 5, 7), (1, 3, 37), (2, 3, 0)]
if not config.ENABLE_CUDASIM:
    SPACES += [(3, 600, 8), (2, 21, 1000), (1, 4097, 70), (64, 64, 49), (0, 3, 4), (3, 1, 1)]


@pytest.mark.parametrize(("space", "name"), one_of(3, product(SPACES, SPECS)), ids=str)
def test_values_and_gradients(space: tuple[int, ...], name: str) -> None:
    spec = parse(SPECS[name])
    space = space[-spec.rank :]
    tolerance = "float16" if name == "storage" else None
    check(spec, inputs_of(spec, space), space, tolerance)


def test_rows_without_elements() -> None:
    spec = parse(SPECS["sum"])
    (got,) = outputs(spec, [np.empty((2, 0, 5), "float32")])
    np.testing.assert_array_equal(got, np.zeros((2, 5)))


@pytest.mark.parametrize(
    "space",
    [(2, 1, 2, 3, 2, 4), pytest.param((2, 3, 2, 3, 2, 4), marks=pytest.mark.slow)],
    ids=str,
)
def test_several_outer_axes(space: tuple[int, ...]) -> None:
    spec = parse(
        "f32[a,b|c,d|e,f] (f32[a,b,c,d,e,f], f32[b,1,1,1,1], f32[c,d,1,1]) { %3 = mul %0 %1;"
        " %4 = softmax %3; %5 = mul %4 %2; %6 = reduce_max %5; return %5:f32[a,b,c,d,e,f],"
        " %6:f32[a,b,e,f], %5:f32[c,d], %6:f32[b,1,1], %6:f32[] }"
    )
    arrays = inputs_of(spec, space)
    for g, w in zip(outputs(spec, arrays), evaluate(spec, arrays, dtype="float64"), strict=True):
        assert_near(g, w, "float32")


@pytest.mark.parametrize(
    "requests",
    one_of(3, [[WRITE, ADD, SKIP], [SKIP, WRITE, ADD], [ADD, SKIP, WRITE]]),
    ids=str,
)
def test_outputs_are_added_to_or_left_alone(requests: list[int]) -> None:
    spec = parse(SPECS["layer norm"])
    found = differentiate(spec).spec
    assert found is not None
    space = (2, 5, 9)
    arrays: list[Any] = inputs_of(found, space)
    want = evaluate(found, arrays, space, dtype="float64")
    before = [noise(*w.shape, seed=50 + i) for i, w in enumerate(want)]
    outs = on_device(*before)
    cuda.run(
        spec, on_device(*arrays), outputs=outs, backward=True, requests=requests, extents=space
    )
    for out, w, b, request in zip(outs, want, before, requests, strict=True):
        w = {SKIP: b, ADD: w + b, WRITE: w}[request]
        assert_near(np.asarray(out.copy_to_host()), w, "float32")
