"""The same functions by the C library, for whoever wants its results rather than speed."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from numba import njit, types

# A division by zero gives an infinity, as everywhere else here; numba's default is to raise.
_compile = partial(njit, error_model="numpy")
_TYPES = {"float32": types.float32, "float64": types.float64}
_cbrt = types.ExternalFunction("cbrt", types.float64(types.float64))


@_compile
def _sigmoid(x: float) -> float:
    e = math.exp(-abs(x))
    return (e if x < 0.0 else 1.0) / (1.0 + e)


@_compile
def _softplus(x: float) -> float:
    return (x if x > 0.0 else 0.0) + math.log1p(math.exp(-abs(x)))


@_compile
def _rsqrt(x: float) -> float:
    return 1.0 / math.sqrt(x)


@_compile
def _rcbrt(x: float) -> float:
    return float(1.0 / _cbrt(x))


# What the library has is called in the precision asked for, the rest is composed in float64.
_LIBRARY = {
    "cos": math.cos,
    "erf": math.erf,
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log10": math.log10,
    "log1p": math.log1p,
    "log2": math.log2,
    "pow": math.pow,
    "sin": math.sin,
    "tanh": math.tanh,
}
_COMPOSED = {
    "cbrt": _cbrt,
    "rcbrt": _rcbrt,
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
}
NAMES = frozenset(_LIBRARY) | frozenset(_COMPOSED)


def kernel_function(name: str, dtype: str) -> Callable[..., Any]:
    """The function `name` of `NAMES` for numba kernels, by the C library."""
    kind = _TYPES[dtype]
    inner = _TYPES[dtype if name in _LIBRARY else "float64"]
    called: Any = _LIBRARY.get(name) or _COMPOSED[name]
    if name == "pow":

        def function(x, y):  # type: ignore[no-untyped-def]
            return kind(called(inner(x), inner(y)))
    else:

        def function(x):  # type: ignore[no-untyped-def, misc]
            return kind(called(inner(x)))

    compiled: Callable[..., Any] = _compile(function)
    return compiled
