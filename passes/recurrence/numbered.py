"""The values of a loop's body as numbers of columns of a step that is made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Node, Value
from graphopt.ir.types import TensorType
from graphopt.passes.recurrence.columns import Columns, Numbers


class Numbered:
    """The values of a body, and the matrices of the step that hold them.

    Attributes:
        step: what is made; its inputs are in the order in which they were asked for.
        columns: of its matrices.
        rows: inputs of the step for those captured by the body that have a row for each sequence.
        learned: for those that are the same for all sequences.
    """

    def __init__(self, body: Graph, batch: int, *, batched: bool) -> None:
        """Of a body with types, of which nothing is fed yet.

        Args:
            body: what the loop runs in each step.
            batch: the number of sequences, or rows.
            batched: whether the first axis of values is the batch; else each is one row.
        """
        self.body, self.batch, self.batched = body, batch, batched
        self.step = Graph("step")
        self.columns = Columns(self.step, batch)
        self.rows: dict[Value, Value] = {}
        self.learned: dict[Value, Value] = {}
        self._numbers: dict[Value, Numbers] = {}
        self._of_rows: dict[Value, Numbers] = {}
        self._of_learned: dict[Value, Numbers] = {}

    def feed(self, value: Value, widths: Sequence[int]) -> list[Value]:
        """Take in an input that is another in each step, as matrices of some widths."""
        made = [self._input(value, width) for width in widths]
        numbers = np.concatenate([self.columns.number(part) for part in made])
        self._numbers[value] = numbers.reshape(self.shape(value))
        return made

    def put(self, value: Value, numbers: Numbers) -> None:
        """What a value is that the body computes."""
        self._numbers[value] = numbers.reshape(self.shape(value))

    def extents(self, value: Value) -> tuple[int, ...]:
        """Of a value of the body.

        Raises:
            GraphoptError: some are not known, or there are no elements.
        """
        shape = self.body.type_of(value).shape
        if shape is None or None in shape or 0 in shape:
            label = self.body[value.node].label
            raise GraphoptError(f"{label}: its shape {shape} is not known or empty")
        return tuple(extent or 0 for extent in shape)

    def shape(self, value: Value) -> tuple[int, ...]:
        """Of a value's numbers: one element along the batch.

        Raises:
            GraphoptError: its first axis is not the batch.
        """
        shape = self.extents(value)
        if not self.batched:
            return shape
        if shape[:1] != (self.batch,):
            label = self.body[value.node].label
            raise GraphoptError(f"{label}: {shape} has no row for each sequence")
        return (1, *shape[1:])

    def is_captured(self, value: Value) -> bool:
        """Whether a value is an input that is the same in all steps."""
        return value not in self._numbers

    def whole(self, value: Value) -> Numbers:
        """The numbers of a value that has a row for each sequence, or is one."""
        if not self.is_captured(value):
            return self._numbers[value]
        return self._row(value) if self.batched else self._vector(value)

    def beside(self, reader: Node, value: Value, rank: int) -> Numbers:
        """The numbers of an operand that is stretched as others are, to so many axes.

        Raises:
            GraphoptError: along the batch, too, or what is the batch of one is not that of another.
        """
        shape = self.extents(value)
        is_aligned = len(shape) == rank
        if not self.is_captured(value):
            if self.batched and not is_aligned:
                raise GraphoptError(f"{reader.label} mixes the sequences of the batch")
            return self._numbers[value]
        if self.batched and is_aligned and shape[0] != 1:
            return self._row(value)
        return self._vector(value)

    def parameter(self, value: Value) -> Value:
        """The input of the step for what the body captures, as it is."""
        if value not in self.learned:
            name = self.step.unique_name(self.body[value.node].name)
            made = self.step.add_input(name, PARAM, self.body.type_of(value))
            self.learned[value] = made.out()
        return self.learned[value]

    def _row(self, value: Value) -> Numbers:
        """Of what the body captures for each sequence: a state that never changes."""
        if value not in self._of_rows:
            shape = self.shape(value)
            self.rows[value] = self._input(value, math.prod(shape))
            self._of_rows[value] = self.columns.number(self.rows[value]).reshape(shape)
        return self._of_rows[value]

    def _vector(self, value: Value) -> Numbers:
        if value not in self._of_learned:
            numbers = self.columns.number(self.parameter(value))
            self._of_learned[value] = numbers.reshape(self.extents(value))
        return self._of_learned[value]

    def _input(self, value: Value, width: int) -> Value:
        name = self.step.unique_name(self.body[value.node].name)
        type_ = TensorType(self.body.type_of(value).dtype, (self.batch, width))
        return self.step.add_input(name, DATA, type_).out()
