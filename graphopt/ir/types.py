"""Tensor types: dtype and shape of a value, either of which may be unknown."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from graphopt.errors import ParseError

Shape = tuple[int | None, ...]

#: dtype name -> (short name in the text IR, bytes per element, MXNet type code)
DTYPES: Final[dict[str, tuple[str, int, int]]] = {
    "float32": ("f32", 4, 0),
    "float64": ("f64", 8, 1),
    "float16": ("f16", 2, 2),
    "uint8": ("u8", 1, 3),
    "int32": ("i32", 4, 4),
    "int8": ("i8", 1, 5),
    "int64": ("i64", 8, 6),
    "bool": ("b1", 1, 7),
    "bfloat16": ("bf16", 2, 12),
}
_LONG: Final = {short: name for name, (short, _, _) in DTYPES.items()}
_TYPE = re.compile(r"(\?|[a-z]+[0-9]+)(?:\[(\*|[0-9?,\s]*)\])?")


@cache
def dtype_name(dtype: Any) -> str:
    """The name of a dtype that MXNet's arrays have, whose bfloat16 is a record to numpy."""
    import numpy as np

    found = np.dtype(dtype)
    return found.names[0] if found.names else found.name


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dtype by its numpy name and a shape; ``None`` stands for what is not known."""

    dtype: str | None = None
    shape: Shape | None = None

    @property
    def rank(self) -> int | None:
        """Number of axes, or ``None`` when the shape is unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether dtype and every extent are known."""
        return self.dtype is not None and self.shape is not None and None not in self.shape

    @property
    def size(self) -> int | None:
        """Number of elements, or ``None`` when an extent is unknown."""
        if self.shape is None:
            return None
        extents = [extent for extent in self.shape if extent is not None]
        return math.prod(extents) if len(extents) == len(self.shape) else None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the dense tensor, or ``None`` when the type is not static."""
        size = self.size
        return None if size is None or self.dtype is None else size * DTYPES[self.dtype][1]

    def with_shape(self, shape: Shape | None) -> TensorType:
        """The same dtype with another shape."""
        return TensorType(self.dtype, shape)

    def __str__(self) -> str:
        """Print as ``f32[8,?,64]``; ``?`` is unknown, ``[*]`` an unknown rank."""
        if self.dtype is None and self.shape is None:
            return "?"
        short = "?" if self.dtype is None else DTYPES[self.dtype][0]
        if self.shape is None:
            return f"{short}[*]"
        return f"{short}[{','.join('?' if e is None else str(e) for e in self.shape)}]"


UNKNOWN: Final = TensorType()


def parse_type(text: str) -> TensorType:
    """The inverse of ``str(TensorType)``.

    Raises:
        ParseError: the text is no tensor type.
    """
    match = _TYPE.fullmatch(text.strip())
    if match is None or (match[1] != "?" and match[1] not in _LONG):
        raise ParseError(f"{text!r} is no tensor type; write for example f32[8,?,64] or ?")
    dtype = None if match[1] == "?" else _LONG[match[1]]
    if match[2] is None or match[2] == "*":
        return TensorType(dtype, None)
    extents = [part.strip() for part in match[2].split(",")] if match[2].strip() else []
    try:
        shape = tuple(None if part == "?" else int(part) for part in extents)
    except ValueError:
        raise ParseError(f"{text!r} has a malformed shape") from None
    return TensorType(dtype, shape)
