"""Buffers to be placed: identifiers, half-open lifetimes, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphopt.errors import InputError

Integers = npt.NDArray[np.int64]

#: Bytes of the largest buffer: sums of a million of them still fit 64 bits.
MAX_SIZE = 1 << 40

#: The last moment there is.
MAX_TIME = 1 << 62


@dataclass(frozen=True, eq=False, init=False)
class Buffers:
    """Buffers, each live at the moments ``lower <= t < upper``.

    Attributes:
        ids: n different names.
        lower: int64 ``[n]``, first moment of each lifetime, at least 0.
        upper: int64 ``[n]``, first moment after it, above ``lower``.
        size: int64 ``[n]``, bytes, 1 to 2**40.

    Raises:
        InputError: the columns differ in length, or a buffer breaks one of these rules.
    """

    ids: tuple[str, ...]
    lower: Integers
    upper: Integers
    size: Integers

    def __init__(
        self,
        ids: Sequence[object],
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        size: npt.ArrayLike,
    ) -> None:
        """Check and copy the columns."""
        object.__setattr__(self, "ids", tuple(map(str, ids)))
        for name, column in (("lower", lower), ("upper", upper), ("size", size)):
            object.__setattr__(self, name, _column(name, column, len(self.ids)))
        found = problem(self.ids, self.lower, self.upper, self.size)
        if found is not None:
            raise InputError(f"row {found[0]}: {found[1]}")

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Buffers({len(self)} buffers, {self.total} bytes)"

    @property
    def total(self) -> int:
        """The sum of all sizes: what an arena without any reuse takes."""
        return int(self.size.sum())


def problem(
    ids: Sequence[str], lower: Integers, upper: Integers, size: Integers
) -> tuple[int, str] | None:
    """The first row that breaks a rule of :class:`Buffers`, and what is wrong with it."""
    rules = {
        "lower is {lower}, but moments start at 0": lower < 0,
        "upper is {upper}, but moments end at 2**62": upper > MAX_TIME,
        "upper ({upper}) must be above lower ({lower})": upper <= lower,
        "size is {size}, but must be at least 1": size < 1,
        "size is {size}, but must be at most 2**40": size > MAX_SIZE,
    }
    broken = [(int(np.argmax(bad)), rule) for rule, bad in rules.items() if bad.any()]
    if broken:
        row, rule = min(broken)
        text = rule.format(lower=lower[row], upper=upper[row], size=size[row])
        return row, f"buffer {ids[row]!r}: {text}"
    seen: set[str] = set()
    for row, name in enumerate(ids):
        if name in seen:
            return row, f"buffer {name!r} is there twice; every id must be used once"
        seen.add(name)
    return None


def _column(name: str, values: npt.ArrayLike, count: int) -> Integers:
    given = np.asarray(values)
    if given.size == 0:
        given = given.astype(np.int64)
    if given.dtype.kind not in "iu" or given.ndim != 1:
        raise InputError(
            f"{name} must be one-dimensional and of integers that fit int64, not"
            f" {given.ndim}-dimensional and of {given.dtype}"
        )
    if len(given) != count:
        raise InputError(f"{name} has {len(given)} values for {count} ids; give one for each")
    if given.dtype == np.uint64 and given.max(initial=0) > np.iinfo(np.int64).max:
        raise InputError(f"{name} holds {given.max()}, which does not fit int64")
    column = given.astype(np.int64)
    column.setflags(write=False)
    return column
