"""Columns of the matrices of a step, by number.

Whatever the shape of a value, as long as its first axis is the batch it is a matrix in memory, with
a row for each sequence. An array of numbers, in the shape of the value, says which columns of which
matrices its elements are: to reshape, slice, transpose, join or repeat values is to do that to
these arrays, and computes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, Value
from graphopt.ir.types import TensorType

Numbers = NDArray[np.int64]

#: A value that lies in more parts is not computed part by part: each is a kernel's result.
MAX_PARTS: Final = 32


def segments(arrays: Sequence[Numbers], size: int) -> list[slice]:
    """Where to cut flat arrays, all of one size: between the cuts each counts up or stays."""
    if size <= 1 or not arrays:
        return [slice(0, size)]
    steps = np.diff(np.stack(arrays))
    is_plain = ((steps == 0) | (steps == 1)).all(axis=0)
    goes_on = np.ones(size - 1, dtype=bool)
    goes_on[1:] = (steps[:, 1:] == steps[:, :-1]).all(axis=0)
    cuts = [0]
    for gap in np.flatnonzero(~(is_plain & goes_on)):
        # The first gap behind a cut goes on with nothing.
        if not is_plain[gap] or cuts[-1] < gap:
            cuts.append(int(gap) + 1)
    return [slice(*pair) for pair in zip(cuts, [*cuts[1:], size], strict=True)]


@dataclass(frozen=True)
class Run:
    """Adjacent columns of a matrix or elements of a row, or one of them many times.

    Attributes:
        source: the matrix, or a parameter that is the same for all rows.
        start: the first one.
        width: how many there are in the end.
        is_stretched: whether all are the first one.
    """

    source: Value
    start: int
    width: int
    is_stretched: bool = False

    @property
    def copies(self) -> int:
        """How often it repeats what it is without repetitions."""
        return self.width if self.is_stretched else 1


class Columns:
    """The matrices of a step's graph, and the rows that are the same for all sequences."""

    def __init__(self, step: Graph, batch: int) -> None:
        """Of a graph whose matrices have ``batch`` rows; there are none yet."""
        self.step, self.batch = step, batch
        self._first: list[int] = []
        self._values: list[Value] = []
        self._next = 0
        self._slices: dict[tuple[Value, int, int], Value] = {}
        self._matrices: dict[bytes, Value] = {}
        self._anchor: Value | None = None

    def number(self, value: Value) -> Numbers:
        """New numbers for the columns of a matrix, or for the elements of a parameter."""
        width = self._width(value)
        if self._anchor is None and not self.is_parameter(value):
            self._anchor = value
        first = self._next
        self._first.append(first)
        self._values.append(value)
        self._next += width + 1  # columns of two values are no neighbours
        return np.arange(first, first + width)

    def is_parameter(self, value: Value) -> bool:
        """Whether it is the same for all rows."""
        return self.step[value.node].op == PARAM

    def runs(self, numbers: Numbers) -> list[Run]:
        """What columns are, side by side."""
        return [self.run(numbers[cut]) for cut in segments([numbers], numbers.size)]

    def run(self, numbers: Numbers) -> Run:
        """What columns are that count up or stay."""
        at = bisect_right(self._first, int(numbers[0])) - 1
        start = int(numbers[0]) - self._first[at]
        is_stretched = numbers.size > 1 and bool(numbers[0] == numbers[1])
        return Run(self._values[at], start, numbers.size, is_stretched)

    def operand(self, run: Run) -> Value:
        """As one that is stretched on its own: a matrix, one of a single column, or a row."""
        width = run.width // run.copies
        if (found := self._slices.get((run.source, run.start, width))) is None:
            found = self._slices[run.source, run.start, width] = self._sliced(run, width)
        return found

    def once(self, run: Run) -> Value:
        """As a matrix, of a single column if that is repeated."""
        value = self.operand(run)
        if not self.is_parameter(run.source):
            return value
        zeros = self.add("zeros_like", [self._column()], 1, "zeros")
        return self.add("broadcast_add", [zeros, value], run.width // run.copies, "rows")

    def wide(self, run: Run) -> Value:
        """As a matrix of all its columns."""
        value = self.once(run)
        if run.is_stretched:
            attrs = {"axis": (1,), "size": (run.width,)}
            value = self.add("broadcast_axis", [value], run.width, "stretched", **attrs)
        return value

    def matrix(self, numbers: Numbers) -> Value:
        """The matrix that has these columns."""
        key = numbers.tobytes()
        if key not in self._matrices:
            parts = [self.wide(run) for run in self.few_runs(numbers)]
            whole = parts[0]
            if len(parts) > 1:
                attrs = {"dim": 1, "num_args": len(parts)}
                whole = self.add("Concat", parts, numbers.size, "joined", **attrs)
            self._matrices[key] = whole
        return self._matrices[key]

    def few_runs(self, numbers: Numbers) -> list[Run]:
        """The same as :meth:`runs`.

        Raises:
            GraphoptError: there are too many.
        """
        runs = self.runs(numbers)
        if len(runs) > MAX_PARTS:
            raise GraphoptError(f"a value lies in {len(runs)} parts, of {MAX_PARTS} at most")
        return runs

    def add(self, op: str, inputs: Sequence[Value], width: int, name: str, **attrs: Any) -> Value:
        """A new matrix, which has no numbers yet."""
        dtype = self.step.type_of(inputs[0]).dtype
        types = [TensorType(dtype, (self.batch, width))]
        return self.step.add(op, inputs, attrs, types, self.step.unique_name(name)).out()

    def _width(self, value: Value) -> int:
        type_ = self.step.type_of(value)
        shape = type_.shape or ()
        return (type_.size if self.is_parameter(value) else shape[1]) or 0

    def _column(self) -> Value:
        """Any column, to tell the number of rows."""
        if self._anchor is None:
            raise GraphoptError("nothing in it has a row for each sequence")
        return self.operand(Run(self._anchor, 0, 1))

    def _sliced(self, run: Run, width: int) -> Value:
        value, end = run.source, run.start + width
        if self.is_parameter(value):
            return self._sliced_row(value, run.start, width)
        if width == self._width(value):
            return value
        attrs = {"axis": 1, "begin": run.start, "end": end}
        return self.add("slice_axis", [value], width, "columns", **attrs)

    def _sliced_row(self, value: Value, start: int, width: int) -> Value:
        """Of a parameter; it is one that is computed once, before the first step."""
        type_ = self.step.type_of(value)
        if type_.shape in ((width,), (1, width)):
            return value
        flat = TensorType(type_.dtype, (type_.size,))
        name = self.step.unique_name("row")
        row = self.step.add("Reshape", [value], {"shape": (-1,)}, [flat], name).out()
        if width == type_.size:
            return row
        attrs = {"axis": 0, "begin": start, "end": start + width}
        name, part = self.step.unique_name("row"), TensorType(type_.dtype, (width,))
        return self.step.add("slice_axis", [row], attrs, [part], name).out()
