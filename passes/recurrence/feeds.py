"""What the steps of a chain are fed with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Value
from graphopt.passes.recurrence.sequences import cut_of


class Feeds:
    """Compares values that steps read with each other; each pair once, so in linear time."""

    def __init__(self, graph: Graph) -> None:
        """Of a graph that stays as it is."""
        self._graph = graph
        self._known: set[tuple[Value, Value]] = set()

    def are_alike(self, slots: Sequence[Sequence[Value]]) -> bool:
        """Whether each step reads what the one before it reads, but of other data.

        Args:
            slots: for each place, what the steps read there.
        """
        found = {pair for slot in slots for pair in pairwise(slot)} - self._known
        pending = list(found)
        while pending:
            further = self._compare(*pending.pop())
            if further is None:
                return False  # and so again: what has not been compared is not known
            pending += further - self._known - found
            found |= further
        self._known |= found
        return True

    def _compare(self, one: Value, other: Value) -> set[tuple[Value, Value]] | None:
        """What has to be alike for two values to be so; ``None`` if they are not anyway."""
        if one.node == other.node or self._are_of_one_array(one, other):
            return set()
        ours, theirs = self._graph[one.node], self._graph[other.node]
        if (one.index, ours.op, ours.types) != (other.index, theirs.op, theirs.types):
            return None
        if ours.is_input:
            return set() if ours.op == DATA else None
        if ours.attrs != theirs.attrs or len(ours.inputs) != len(theirs.inputs):
            return None
        return set(zip(ours.inputs, theirs.inputs, strict=True))

    def _are_of_one_array(self, one: Value, other: Value) -> bool:
        first, second = cut_of(self._graph, one), cut_of(self._graph, other)
        return (
            first is not None
            and second is not None
            and (first.source, first.axis) == (second.source, second.axis)
        )
