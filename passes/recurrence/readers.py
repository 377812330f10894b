"""What the steps of a chain compute besides their states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.rows import ROWS
from graphopt.passes.recurrence.chains import Chain
from graphopt.passes.recurrence.feeds import Feeds
from graphopt.passes.recurrence.sequences import extents
from graphopt.passes.recurrence.templates import BEFORE, CORE, Source


def with_readers(graph: Graph, chain: Chain) -> Chain:
    """The chain, with what all of its steps compute from their own values and from no other's.

    An output gate is no part of any state, but reads the columns that the gates of the state lie
    beside. Products stay behind the steps, where one of all rows can be made of them. Linear.
    """
    return _Taker(graph, chain).take()


class _Taker:
    def __init__(self, graph: Graph, chain: Chain) -> None:
        self.graph = graph
        self.steps = [list(step) for step in chain.steps]
        self.chain = replace(
            chain, steps=self.steps, sources=list(chain.sources), slots=list(chain.slots)
        )
        self.places = [{node: at for at, node in enumerate(step)} for step in self.steps]
        #: Nodes of any step: a state is read by the next one, perhaps as an output gate reads it.
        self.taken = {node for step in self.steps for node in step}
        self.feeds = Feeds(graph)
        self.behind = self._behind()
        self.batch = extents(graph, Value(self.steps[0][0], 0))[:1]

    def _behind(self) -> set[NodeId]:
        """What depends on any step."""
        found = set(self.taken)
        for node in self.graph:
            if any(value.node in found for value in node.inputs):
                found.add(node.id)
        return found

    def take(self) -> Chain:
        pending = list(range(len(self.chain.sources)))
        while pending:
            place = pending.pop()
            for value in self.graph[self.steps[0][place]].values:
                for use in self.graph.users(value):
                    row = self._row(place, value.index, use.node, use.position)
                    if row is not None and self._add(row):
                        pending.append(len(self.chain.sources) - 1)
        return self.chain

    def _row(self, place: int, output: int, first: NodeId, position: int) -> list[NodeId] | None:
        """A reader in the first step and its counterparts, if each step has just one."""
        wanted = self.graph[first]
        if first in self.taken or not self._is_takable(wanted):
            return None
        row = []
        for step in self.steps:
            alike = [
                use.node
                for use in self.graph.users(Value(step[place], output))
                if use.position == position
                and use.node not in self.taken
                and _kind(self.graph[use.node]) == _kind(wanted)
                and not self.graph[use.node].after
            ]
            if len(alike) != 1:
                return None
            row += alike
        return row

    def _is_takable(self, node: Node) -> bool:
        op = canonical(node.op)
        dtypes = {node.type.dtype, *(self.graph.type_of(v).dtype for v in node.inputs)}
        return (
            (op in POINTWISE or op in ROWS)
            and len(node.types) == 1
            and node.type.rank == 2
            # One row of all sequences may be stretched to many.
            and extents(self.graph, node.out())[:1] == self.batch
            and len(dtypes) == 1
            and not node.graphs
            and not node.after
        )

    def _add(self, row: Sequence[NodeId]) -> bool:
        reads = [self.graph[node].inputs for node in row]
        sources: list[Source] = []
        slots: list[list[Value]] = []
        for values in zip(*reads, strict=True):
            found = self._source(values)
            if found is None:
                slot = list(values)
                if any(value.node in self.behind for value in slot):
                    return False
                slots += [] if slot in self.chain.slots or slot in slots else [slot]
                known = [*self.chain.slots, *slots]
                found = (BEFORE, known.index(slot), 0)
            sources.append(found)
        if not self.feeds.are_alike(slots):
            return False
        self.chain.slots += slots
        self.chain.sources.append(sources)
        self.taken.update(row)
        for step, places, node in zip(self.steps, self.places, row, strict=True):
            places[node] = len(step)
            step.append(node)
        return True

    def _source(self, values: Iterable[Value]) -> Source | None:
        """Where in their own step values are computed, if it is the same place in all."""
        found = {
            (places.get(value.node), value.index)
            for places, value in zip(self.places, values, strict=True)
        }
        if len(found) > 1:
            return None
        place, output = found.pop()
        return None if place is None else (CORE, place, output)


def _kind(node: Node) -> tuple[object, ...]:
    return node.op, node.attrs, node.types, len(node.inputs)
