"""Comparing the steps of an unrolled recurrence with a template, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.passes.recurrence.templates import BEFORE, CORE, STATE, Source, Template

#: Ways to match a step with another that are tried.
MOST_TRIALS: Final = 32


class Trials:
    """Ways through a search with choices, one after the other: the last choice changes first."""

    def __init__(self) -> None:
        self._taken: list[int] = []
        self._counts: list[int] = []
        self._at = 0

    def choose(self, count: int) -> int:
        """Which of ``count`` to take this time."""
        if self._at == len(self._taken):
            self._taken.append(0)
            self._counts.append(count)
        self._at += 1
        return self._taken[self._at - 1]

    def advance(self) -> bool:
        """Go on to the next way, if there is one."""
        while self._taken and self._taken[-1] + 1 == self._counts[-1]:
            self._taken.pop()
            self._counts.pop()
        self._at = 0
        if not self._taken:
            return False
        self._taken[-1] += 1
        return True


class Matcher:
    """Finds the counterparts of a template's nodes in other steps."""

    def __init__(
        self, graph: Graph, anchors: Sequence[NodeId], step_of: Mapping[NodeId, int]
    ) -> None:
        """In the steps that ``anchors`` count; ``step_of`` tells the step of every node."""
        self.graph, self.anchors, self.step_of = graph, anchors, step_of

    def match(
        self,
        template: Template,
        step: int,
        previous: Sequence[NodeId] | None,
        states: Sequence[tuple[int, int]],
        accept: Callable[[list[NodeId]], bool] = lambda _: True,
    ) -> list[NodeId] | None:
        """The nodes of a step in the order of the template, or ``None`` if it is not like it.

        From the anchor on along the edges, in both directions. Where two readers of a value look
        alike, as the two masks of zoneout do, one is tried and then the other.

        Args:
            template: what to compare with.
            step: which step.
            previous: the step before, if it is known which of its values are the ``states``.
            states: core values, by place and output.
            accept: what else there is to be said about them.
        """
        trials = Trials()
        for _ in range(MOST_TRIALS):
            matched = self._match_once(template, step, trials)
            if (
                matched is not None
                and self._fits(matched, template, previous, states)
                and accept(matched)
            ):
                return matched
            if not trials.advance():
                break
        return None

    def _match_once(self, template: Template, step: int, trials: Trials) -> list[NodeId] | None:
        found: dict[int, NodeId] = {template.anchor: self.anchors[step]}
        readers = template.readers
        pending = [template.anchor]
        while pending:
            at = pending.pop()
            node = self.graph[found[at]]
            if not self._is_alike(node, self.graph[template.nodes[at]]):
                return None
            for value, (kind, place, output) in zip(node.inputs, template.sources[at], strict=True):
                if kind != CORE:
                    continue
                if value.index != output or found.setdefault(place, value.node) != value.node:
                    return None
                if place not in pending and not self._is_seen(place, found, template):
                    pending.append(place)
            for output in range(len(node.types)):
                for place, position in readers.get((at, output), ()):
                    if place in found:
                        continue
                    alike = self._readers(node.out(output), position, place, template, found)
                    if not alike:
                        return None
                    found[place] = alike[trials.choose(len(alike))]
                    pending.append(place)
        if len(found) < len(template.nodes):
            return None
        return [found[at] for at in range(len(template.nodes))]

    def _is_seen(self, place: int, found: dict[int, NodeId], template: Template) -> bool:
        """Whether what a node reads and who reads it has been found already."""
        node = self.graph[found[place]]
        return all(
            kind != CORE or source in found for kind, source, _ in template.sources[place]
        ) and all(
            reader in found
            for output in range(len(node.types))
            for reader, _ in template.readers.get((place, output), ())
        )

    def _readers(
        self,
        value: Value,
        position: int,
        place: int,
        template: Template,
        found: dict[int, NodeId],
    ) -> list[NodeId]:
        """What may be the counterpart of a template's node among the readers of a value."""
        wanted = self.graph[template.nodes[place]]
        alike = []
        for use in self.graph.users(value):
            node = self.graph[use.node]
            if use.position != position or not self._is_alike(node, wanted):
                continue
            known = all(
                kind != CORE or found.get(source, read.node) == read.node
                for read, (kind, source, _) in zip(
                    node.inputs, template.sources[place], strict=True
                )
            )
            if known and use.node not in found.values():
                alike.append(use.node)
        # Masks of a variational dropout are the same ones in all steps.
        return sorted(alike, key=lambda number: self._differing(number, place, template))

    def _differing(self, number: NodeId, place: int, template: Template) -> int:
        """How much of what a node reads from before all steps is not what the template reads."""
        return sum(
            kind == BEFORE and read != template.before[slot]
            for read, (kind, slot, _) in zip(
                self.graph[number].inputs, template.sources[place], strict=True
            )
        )

    def _is_alike(self, node: Node, wanted: Node) -> bool:
        return (
            (node.op, node.attrs, node.types) == (wanted.op, wanted.attrs, wanted.types)
            and len(node.inputs) == len(wanted.inputs)
            and not node.graphs
            and not node.after
        )

    def _fits(
        self,
        nodes: Sequence[NodeId],
        template: Template,
        previous: Sequence[NodeId] | None,
        states: Sequence[tuple[int, int]],
    ) -> bool:
        """Whether the step reads what the template reads, in every place."""
        own = set(nodes)
        first_read: dict[Source, Value] = {}
        pairs = zip(nodes, template.nodes, strict=True)
        if not all(self._is_alike(self.graph[one], self.graph[two]) for one, two in pairs):
            return False
        for number, reads in zip(nodes, template.sources, strict=True):
            for value, source in zip(self.graph[number].inputs, reads, strict=True):
                kind, place, output = source
                if kind == CORE:
                    if value != Value(nodes[place], output):
                        return False
                    continue
                if value.node in own or first_read.setdefault(source, value) != value:
                    return False
                if kind == BEFORE and self.step_of[value.node] >= 0:
                    return False
                if kind == STATE and previous is not None:
                    at, index = states[place]
                    if value != Value(previous[at], index):
                        return False
        return True

    def reads(
        self, nodes: Sequence[NodeId], template: Template, kind: str, count: int
    ) -> list[Value]:
        """What a step reads as states or from before, by their numbers."""
        found: dict[int, Value] = {}
        for number, reads in zip(nodes, template.sources, strict=True):
            for value, (what, place, _) in zip(self.graph[number].inputs, reads, strict=True):
                if what == kind:
                    found[place] = value
        return [found[number] for number in range(count)]
