"""How the arrays around a loop become those that a recurrence reads and writes, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.ir.graph import Graph
from graphopt.ir.node import Value
from graphopt.passes.recurrence.sequences import add, extents


@dataclass(frozen=True)
class Layout:
    """A recurrence's sequences are (steps, batch, columns), its states (batch, columns).

    Reshapes hold for any number of steps and sequences.

    Attributes:
        steps: how often the loop runs.
        batch: the number of sequences.
        batched: whether arrays of the loop have an axis for them; else it is added.
    """

    steps: int
    batch: int
    batched: bool

    def sequence(self, graph: Graph, value: Value, name: str) -> Value:
        """What the body reads row by row."""
        _, *rest = extents(graph, value)
        shape = (self.steps, self.batch, math.prod(rest) // self.batch)
        if self.batched and len(rest) == 1:
            return add(graph, "expand_dims", [value], shape, name, axis=2).out()
        return _reshaped(graph, value, shape, name, (0, 0, -1) if self.batched else (0, 1, -1))

    def state(self, graph: Graph, value: Value, name: str, widths: Sequence[int]) -> list[Value]:
        """What a state is at first, in parts."""
        shape = (self.batch, sum(widths))
        if self.batched and len(extents(graph, value)) == 1:
            whole = add(graph, "expand_dims", [value], shape, name, axis=1).out()
        else:
            whole = _reshaped(graph, value, shape, name, (0, -1) if self.batched else (1, -1))
        if len(widths) == 1:
            return [whole]
        parts, begin = [], 0
        for width in widths:
            size, cut = (self.batch, width), {"axis": 1, "begin": begin, "end": begin + width}
            parts.append(add(graph, "slice_axis", [whole], size, name, **cut).out())
            begin += width
        return parts

    def emitted(
        self,
        graph: Graph,
        parts: Sequence[Value],
        copies: Sequence[int],
        shape: tuple[int, ...],
        name: str,
    ) -> Value:
        """What the loop returns of all steps, of sequences side by side, some of them repeated."""
        repeated = [
            value if count == 1 else self._stretched(graph, value, count, name)
            for value, count in zip(parts, copies, strict=True)
        ]
        whole = _joined(graph, repeated, name, 2)
        codes = (0, 0, *shape[1:]) if self.batched else (0, *shape)
        return _reshaped(graph, whole, (self.steps, *shape), name, codes)

    def _stretched(self, graph: Graph, value: Value, count: int, name: str) -> Value:
        shape = (self.steps, self.batch, count)
        return add(graph, "broadcast_axis", [value], shape, name, axis=(2,), size=(count,)).out()

    def final(
        self, graph: Graph, parts: Sequence[Value], shape: tuple[int, ...], name: str
    ) -> Value:
        """What a state is in the end."""
        whole = _joined(graph, parts, name, 1)
        return _reshaped(graph, whole, shape, name, (0, *shape[1:]) if self.batched else shape)


def _joined(graph: Graph, values: Sequence[Value], name: str, axis: int) -> Value:
    if len(values) == 1:
        return values[0]
    shapes = [extents(graph, value) for value in values]
    whole = (*shapes[0][:axis], sum(shape[axis] for shape in shapes))
    attrs = {"dim": axis, "num_args": len(values)}
    return add(graph, "Concat", values, whole, name, **attrs).out()


def _reshaped(
    graph: Graph, value: Value, shape: tuple[int, ...], name: str, codes: tuple[int, ...]
) -> Value:
    if extents(graph, value) == shape:
        return value
    return add(graph, "Reshape", [value], shape, name, shape=codes).out()
