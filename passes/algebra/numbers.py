"""What is known of numbers and dtypes: when scalars may be merged, and what a cast keeps."""

from __future__ import annotations

import math
from typing import Final

from graphopt.ir.node import Node
from graphopt.ir.types import TensorType

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")

#: Factors outside 1/limit .. limit may overflow or lose bits halfway, which merging would hide.
_FACTOR_LIMIT: Final = {
    "float16": 16.0,
    "bfloat16": 2.0**40,
    "float32": 2.0**40,
    "float64": 2.0**400,
}
_INTEGERS: Final = {
    "uint8": (0, 2**8 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**53), 2**53),  # a scalar is a float64
}
#: The largest numbers.
_LARGEST: Final = {
    "float16": 65504.0,
    "bfloat16": 3.38953139e38,
    "float32": 3.40282347e38,
    "float64": 1.7976931348623157e308,
}
#: Casts that keep every value.
_EXACT: Final = {
    "uint8": ("float16", "float32", "float64", "int32", "int64"),
    "int8": ("float16", "float32", "float64", "int32", "int64"),
    "int32": ("float64", "int64"),
    "float16": ("float32", "float64"),
    "bfloat16": ("float32", "float64"),
    "float32": ("float64",),
}


def is_float(type_: TensorType) -> bool:
    """Whether the dtype is known and a floating one."""
    return type_.dtype in FLOATS


def scalar(node: Node) -> float:
    """The scalar of a scalar operator."""
    return float(node.attrs.get("scalar", 1.0))


def keeps_values(source: str | None, target: str | None) -> bool:
    """Whether a cast from ``source`` to ``target`` loses nothing."""
    return source is not None and (source == target or target in _EXACT.get(source, ()))


def are_held(dtype: str | None, *numbers: float) -> bool:
    """Whether the numbers are finite in the dtype, a floating one."""
    return all(abs(number) <= _LARGEST.get(dtype or "", 0.0) for number in numbers)


def are_factors(dtype: str | None, *factors: float) -> bool:
    """Whether products of these can neither overflow nor vanish in the dtype."""
    limit = _FACTOR_LIMIT.get(dtype or "", 0.0)
    return all(f != 0 and 1 / limit <= abs(f) <= limit for f in factors) if limit else False


def are_integers(dtype: str | None, *numbers: float) -> bool:
    """Whether the dtype is an integer one and holds all the numbers."""
    low, high = _INTEGERS.get(dtype or "", (1, 0))
    return all(n.is_integer() and low <= n <= high for n in map(float, numbers))


def is_power_of_two(number: float) -> bool:
    """Whether multiplying by the number only moves the exponent."""
    return math.isfinite(number) and abs(math.frexp(number)[0]) == 0.5
