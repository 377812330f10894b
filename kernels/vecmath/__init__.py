"""Math functions for numba kernels that LLVM vectorises, in float32 and float64.

`function("tanh", "float32")` is called from a kernel like any compiled function. It branches on
nothing, reads no table and calls no library. `docs/vecmath.md` has the errors and speeds.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

_DTYPES = ("float32", "float64")

# How far from the exact result at most, in units in the last place of the rounded one, for each of
# the dtypes. tests/test_vecmath.py holds the functions to it.
_BOUNDS = {
    "abs": (0.0, 0.0),
    "cbrt": (0.8, 0.8),
    "ceil": (0.0, 0.0),
    "copysign": (0.0, 0.0),
    "cos": (0.55, 1.7),
    "erf": (1.25, 1.3),
    "exp": (1.1, 1.1),
    "expm1": (1.7, 2.2),
    "floor": (0.0, 0.0),
    "log": (1.0, 1.0),
    "log10": (1.2, 1.2),
    "log1p": (1.6, 1.5),
    "log2": (1.2, 1.2),
    "maximum": (0.0, 0.0),
    "minimum": (0.0, 0.0),
    "pow": (0.55, 1.3),
    "rcbrt": (1.1, 1.1),
    "rint": (0.0, 0.0),
    "rsqrt": (1.5, 1.5),
    "sigmoid": (2.4, 2.4),
    "sin": (0.55, 1.7),
    "softplus": (1.9, 1.8),
    "sqrt": (0.5, 0.5),
    "tanh": (2.0, 2.3),
    "trunc": (0.0, 0.0),
}

NAMES: tuple[str, ...] = tuple(_BOUNDS)
BOUNDS: dict[tuple[str, str], float] = {
    (name, dtype): bound
    for name, bounds in _BOUNDS.items()
    for dtype, bound in zip(_DTYPES, bounds, strict=True)
}


def function(name: str, dtype: str, precise: bool = False) -> Callable[..., Any]:
    """The function `name` for numba kernels, in `dtype`; it errs by at most `BOUNDS[name, dtype]`.

    Args:
        name: One of `NAMES`.
        dtype: "float32" or "float64"; arguments of other types are cast to it.
        precise: Whether to call the C library instead, element by element.
    """
    if (name, dtype) not in BOUNDS:
        raise ValueError(
            f"expected a function of {', '.join(NAMES)} and a dtype of {', '.join(_DTYPES)}, "
            f"found {name!r} and {dtype!r}."
        )
    return _function(name, dtype, precise)


@cache
def _function(name: str, dtype: str, precise: bool) -> Callable[..., Any]:
    # numba takes a second to import, which whoever compiles no kernel of his own need not wait for.
    from graphopt.kernels.vecmath.numba_functions import kernel_function

    compiled: Callable[..., Any] = kernel_function(name, dtype, expression(name, dtype, precise))
    return compiled


def expression(name: str, dtype: str, precise: bool = False) -> Callable[..., Any]:
    """The same of :class:`graphopt.kernels.vecmath.intrinsics.Value`, for whoever emits LLVM IR."""
    from graphopt.kernels.vecmath import float32, float64, intrinsics, libm

    if precise and name in libm.FUNCTIONS:
        return libm.FUNCTIONS[name]
    functions = {"float32": float32, "float64": float64}[dtype].FUNCTIONS
    return functions.get(name) or intrinsics.INSTRUCTIONS[name]
