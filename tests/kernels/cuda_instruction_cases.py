"""Each instruction of CUDA kernels by itself: values at special numbers, and slopes.

Run as cuda_cases.py is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="there is no numba.cuda")

from numba import config
from numba import cuda as numba_cuda

if not config.ENABLE_CUDASIM and not numba_cuda.is_available():
    pytest.skip("for numba's simulator of CUDA, or a GPU", allow_module_level=True)

from graphopt.kernels import cuda
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.instructions import INSTRUCTIONS, Kind
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse
from tests.kernels.cuda_support import on_device, quick_switches
from tests.kernels.test_cuda import OF_CPUS
from tests.tiers import one_of

__all__ = ["quick_switches"]  # a fixture

MAPS = sorted(
    op for op, info in INSTRUCTIONS.items() if info.kind is Kind.MAP and op not in OF_CPUS
)
WITH_SLOPES = [op for op in MAPS if INSTRUCTIONS[op].gradient is not None]
STORED = {"f32": "float32", "f64": "float64"}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 2.0, 3.0]
USUAL = [-7.3, -2.2, -0.7, -0.31, 0.12, 0.25, 0.9, 1.1, 2.7, 6.4, 11.0]
#: The simulator takes a thread of the machine's for each of a kernel's.
FEW = [*SPECIAL[:8], -2.2, 2.7] if config.ENABLE_CUDASIM else SPECIAL + USUAL
#: Roundings that functions of libdevice are allowed, in units of the last place, and those of
#: gamma, whose logarithm is near zero here and there.
ROUNDINGS, OF_GAMMA = 4, 64


def operands(count: int, dtype: str) -> list[Any]:
    """Every number with every other, for two and three operands."""
    if count == 1:
        return [np.array(SPECIAL + USUAL, dtype)]
    left, right = (np.array(x, dtype).ravel() for x in np.meshgrid(FEW, FEW))
    return [left, right, np.roll(left, 5)][:count]


def by_turns(ops: list[str], dtypes: tuple[str, str]) -> list[tuple[str, str]]:
    """Each instruction in both dtypes, of which every other one begins with the second."""
    return [(op, dtypes[(at + turn) % 2]) for at, op in enumerate(ops) for turn in range(2)]


def of(op: str, dtype: str) -> KernelSpec:
    """A spec of one instruction."""
    count = INSTRUCTIONS[op].arity
    inputs = ", ".join([f"{dtype}[a]"] * count)
    given = " ".join(f"%{n}" for n in range(count))
    if op == "literal":
        inputs, given = f"{dtype}[a]", "1.5"
    if op == "scale_gradient":
        inputs, given = f"{dtype}[a]", "%0 0.25"
    found = max(1, inputs.count("[a]"))
    return parse(f"{dtype}[a] ({inputs}) {{ %{found} = {op} {given}; return %{found}:{dtype}[a] }}")


def assert_close(
    got: Any, want: Any, same: Any, what: str, roundings: float, least: float = 0.0
) -> None:
    """As near to float64 as ``roundings`` allow, or as numpy in the kernel's own dtype is.

    Roundings are those of numbers as large as ``least``, where it is smaller.
    """
    unit = np.finfo(got.dtype).eps * roundings
    exact = np.asarray(want, "float64").astype(got.dtype)
    for n, (g, w, s) in enumerate(zip(got, exact, same, strict=True)):
        if g in (w, s) or (np.isnan(g) and (np.isnan(w) or np.isnan(s))):
            continue
        near = abs(float(g) - float(w)) <= unit * max(abs(float(w)), least)
        assert near, f"{what} at {n}: {g}, not {w}"


@pytest.mark.parametrize(("op", "dtype"), one_of(2, by_turns(MAPS, ("f32", "f64"))))
def test_values(op: str, dtype: str) -> None:
    spec = of(op, dtype)
    inputs = operands(len(spec.inputs), STORED[dtype])
    (made,) = cuda.run(spec, on_device(*inputs))
    got = made.copy_to_host()
    (want,), (same,) = evaluate(spec, inputs, dtype="float64"), evaluate(spec, inputs)
    roundings = OF_GAMMA if op.startswith("gamma") else ROUNDINGS
    assert_close(got, want, same, op, roundings)


@pytest.mark.parametrize(("op", "dtype"), one_of(2, by_turns(WITH_SLOPES, ("f64", "f32"))))
def test_slopes(op: str, dtype: str) -> None:
    spec = of(op, dtype)
    found = differentiate(spec)
    if found.spec is None:
        assert not found.wrt
        return
    inputs = operands(len(spec.inputs), STORED[dtype])
    made = [np.asarray(x) for x in evaluate(spec, inputs)]
    head = np.linspace(-1.5, 2.0, made[0].size).astype(STORED[dtype])
    given = [
        *(head for _ in found.heads),
        *(inputs[n] for n in found.inputs),
        *(made[n] for n in found.outputs),
    ]
    got = [x.copy_to_host() for x in cuda.run(spec, on_device(*given), backward=True)]
    exact = evaluate(found.spec, given, dtype="float64")
    for g, w, s in zip(got, exact, evaluate(found.spec, given), strict=True):
        # Differences of numbers that are nearly equal, as of 1 and tanh's square, lose digits.
        assert_close(g, w, s, f"slope of {op}", ROUNDINGS, least=1.0)
