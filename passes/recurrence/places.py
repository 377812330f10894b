"""Where the values of a step lie once they are computed."""

from __future__ import annotations

import math

from graphopt.errors import GraphoptError
from graphopt.ir.node import NodeId, Value
from graphopt.kernels.recurrence.spec import Ref
from graphopt.passes.recurrence.values import Values


class Places:
    """Operands of a step's products and kernels.

    Attributes:
        made: what has been computed, and where.
        matrix_of: numbers of the parameters that are multiplied with.
        vector_of: numbers of those that are read element by element.
    """

    def __init__(self, values: Values) -> None:
        """Of the values of a step, of which none is computed yet."""
        self._values, self._body = values, values.body
        self.made: dict[Value, Ref] = {}
        self.matrix_of: dict[NodeId, int] = {}
        self.vector_of: dict[NodeId, int] = {}

    def matrix(self, value: Value) -> int:
        """The number of a matrix.

        Raises:
            GraphoptError: the value is none that all steps read.
        """
        if not self._values.is_parameter(value):
            raise GraphoptError(
                f"{self._body[value.node].label}: a matrix that is not the same in all steps"
            )
        if value.node in self.vector_of:
            raise GraphoptError(
                f"{self._body[value.node].label} is multiplied with and read element by element"
            )
        return self.matrix_of.setdefault(value.node, len(self.matrix_of))

    def vector(self, value: Value) -> Ref:
        """Where a row of numbers lies that all steps read.

        Raises:
            GraphoptError: the value is no row, or is multiplied with elsewhere.
        """
        if value.node in self.matrix_of:
            raise GraphoptError(
                f"{self._body[value.node].label} is multiplied with and read element by element"
            )
        shape = self._values.shape(value)
        if not shape or math.prod(shape) != shape[-1]:
            raise GraphoptError(
                f"{self._body[value.node].label}: {shape} is neither a matrix to multiply with"
                " nor a row"
            )
        index = self.vector_of.setdefault(value.node, len(self.vector_of))
        return Ref("v", index, 0, shape[-1])

    def columns(self, value: Value, start: int, width: int | None) -> list[Ref]:
        """Where columns of a value lie; they have been computed.

        Args:
            value: a value with a row for each sequence.
            start: the first column.
            width: how many; all by default.

        Raises:
            GraphoptError: it is a parameter, or has not been computed.
        """
        if width is None:
            width = self._values.width(value)
        if value in self.made:
            return [self.made[value].part(start, width)]
        number = self._values.inputs.get(value.node)
        if number is not None:
            if self._values.is_parameter(value):
                raise GraphoptError(f"{self._body[value.node].label} is multiplied with a matrix")
            kind = "x" if number < self._values.n_sequences else "s"
            index = number - (0 if kind == "x" else self._values.n_sequences)
            return [Ref(kind, index, start, width)]
        sliced = self._values.sliced(value)
        if sliced is not None:
            return self.columns(self._values.resolve(sliced[0]), start + sliced[1], width)
        parts = self._values.parts(value)
        if parts is None:
            raise GraphoptError(f"{self._body[value.node].label} is read before it is computed")
        found: list[Ref] = []
        at = 0
        for part in map(self._values.resolve, parts):
            size = self._values.width(part)
            low, high = max(start, at), min(start + width, at + size)
            if low < high:
                found += self.columns(part, low - at, high - low)
            at += size
        return found

    def lies_somewhere(self, value: Value) -> bool:
        """Whether a value is columns of what is there already."""
        node = self._body[value.node]
        if node.is_input or value in self.made:
            return True
        sliced = self._values.sliced(value)
        if sliced is not None:
            return self.lies_somewhere(self._values.resolve(sliced[0]))
        parts = self._values.parts(value)
        return parts is not None and all(
            self.lies_somewhere(self._values.resolve(p)) for p in parts
        )
