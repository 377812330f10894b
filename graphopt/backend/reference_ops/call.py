"""What an operator function sees: its inputs, its attributes, the mode.

Every operator of the reference is one function `Call -> list of arrays`. Attributes come as parsed
Python values; an absent one means MXNet's default, which is therefore written beside each use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Attrs: TypeAlias = Mapping[str, object]

# What MXNet's C++ writes for a dtype where Python writes a name.
_DTYPE_CODES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
_FALSE = ("False", "false", "0")


class UnsupportedOp(NotImplementedError):  # noqa: N818 - the name says it
    """The reference has no value for this operator, or not for this use of it."""


@dataclass(frozen=True)
class Call:
    """One evaluation of one operator.

    Attributes:
        op: the MXNet name the graph used, which may be an alias.
        inputs: the arrays, in the operator's own order; auxiliary states come last.
        attrs: the parsed attributes; `None` as a value counts as absent.
        training: whether MXNet would run with `is_train`.
    """

    op: str
    inputs: Sequence[Array]
    attrs: Attrs
    training: bool = False

    @property
    def x(self) -> Array:
        """The first input."""
        return self.inputs[0]

    def has(self, name: str) -> bool:
        """Whether the attribute is given and is not None."""
        return self.attrs.get(name) is not None

    def value(self, name: str, default: object = None) -> Any:
        """The attribute as it is; the default where absent or None.

        Raises:
            ValueError: the attribute is absent and has no default.
        """
        found = self.attrs.get(name)
        if found is not None:
            return found
        if default is None:
            raise ValueError(f"{self.op} needs the attribute {name!r}, which is absent.")
        return default

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute; `1.0` and `True` are integers too."""
        return int(self.value(name, default))

    def number(self, name: str, default: float | None = None) -> float:
        """A number."""
        return float(self.value(name, default))

    def text(self, name: str, default: str | None = None) -> str:
        """A name out of a list, such as `act_type`."""
        return str(self.value(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean; MXNet also writes `false`, `0` and `1`."""
        found = self.attrs.get(name)
        if found is None:
            return default
        return found not in _FALSE if isinstance(found, str) else bool(found)

    def ints(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """A tuple of integers; one integer counts as a tuple of one."""
        found = self.value(name, default)
        return tuple(int(v) for v in found) if isinstance(found, Iterable) else (int(found),)

    def maybe_ints(self, name: str) -> tuple[int | None, ...]:
        """A tuple whose members may be None, such as the `end` of slice; empty where absent."""
        found = self.value(name, ())
        members = found if isinstance(found, Iterable) else (found,)
        return tuple(None if v is None else int(v) for v in members)

    def dtype(self, default: npt.DTypeLike, name: str = "dtype") -> np.dtype[Any]:
        """A dtype attribute, by name or by MXNet's code; `None` and -1 mean the default."""
        found = self.attrs.get(name)
        if found is None or found in (-1, "None"):
            return np.dtype(default)
        return np.dtype(_DTYPE_CODES[found] if isinstance(found, int) else str(found))

    def axis(self, name: str = "axis", default: int | None = None) -> int:
        """An axis of the first input, counted from the front.

        Raises:
            ValueError: the first input has no such axis.
        """
        axis = self.integer(name, default)
        return normal_axis(axis, self.x.ndim, self.op)

    def unsupported(self, why: str) -> UnsupportedOp:
        """The error to raise for a use of the operator that the reference leaves out."""
        return UnsupportedOp(f"The numpy reference has no {self.op} {why}.")


Outputs: TypeAlias = list[Array]
Operator: TypeAlias = Callable[[Call], Outputs]
Table: TypeAlias = Mapping[str, Operator]


def normal_axis(axis: int, ndim: int, op: str) -> int:
    """The axis counted from the front.

    Raises:
        ValueError: an array of `ndim` axes has no such axis.
    """
    if not -ndim <= axis < ndim:
        raise ValueError(f"{op} was given axis {axis}, but its input has {ndim} axes.")
    return axis % ndim


def wide(x: Array) -> Array:
    """The array in float64: the reference computes there and rounds once, at the end."""
    return x.astype(np.float64)


def narrow(x: Array, dtype: npt.DTypeLike) -> Array:
    """The array in `dtype`; NaN and overflow convert without a warning, as in C."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(x).astype(dtype)
