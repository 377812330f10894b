"""Functions that numba kernels call, of expressions.

numba infers the type of one call, however long the function is, so compiling stays cheap.
"""

import inspect
from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic

from graphopt.kernels.vecmath.intrinsics import Value

_TYPES = {"float32": types.float32, "float64": types.float64}


def kernel_function(name: str, dtype: str, emit: Callable[..., Value]) -> Any:
    """`emit` as a function that numba kernels call with scalars, which are cast to `dtype`."""
    kind = _TYPES[dtype]
    arity = len(inspect.signature(emit).parameters)

    def typed(arguments: tuple[Any, ...]) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            return emit(*(Value(builder, value) for value in values)).ir

        if all(isinstance(argument, types.Number | types.Boolean) for argument in arguments):
            return kind(*[kind] * arity), generate
        return None

    # numba reads the number of arguments from the signature, so each arity needs its own.
    def one(_context, x):  # type: ignore[no-untyped-def]
        return typed((x,))

    def two(_context, x, y):  # type: ignore[no-untyped-def]
        return typed((x, y))

    def three(_context, x, y, z):  # type: ignore[no-untyped-def]
        return typed((x, y, z))

    function = {1: one, 2: two, 3: three}[arity]
    function.__name__ = function.__qualname__ = f"{name}_{dtype}"
    function.__doc__ = emit.__doc__
    return intrinsic(function)
