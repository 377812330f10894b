"""Types of arrays, as keys of programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from graphopt.ir.types import dtype_name

#: Shape and the dtype's name.
Type = tuple[tuple[int, ...], str]

#: Which MXNet is left to compute in, see `graphopt/ir/halves.py`.
_LEFT: Final = "bfloat16"


def recordable(shape: tuple[int, ...], dtype: Any) -> Type | None:
    """The type of an array with that shape and dtype; ``None`` if no call with it is recorded."""
    name = dtype_name(dtype)
    return None if name == _LEFT else (shape, name)


def all_recordable(
    shapes: Iterable[tuple[int, ...]], dtypes: Iterable[Any]
) -> tuple[Type, ...] | None:
    """Types of the results of a call; ``None`` if one of them cannot be recorded."""
    found = [recordable(tuple(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    types = tuple(type_ for type_ in found if type_ is not None)
    return types if len(types) == len(found) else None
