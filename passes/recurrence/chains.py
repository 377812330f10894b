"""Finding the steps of an unrolled recurrence.

An unrolled cell uses its weights once a step. So the nodes that apply one operator to the same
weight are *anchors*, and if each depends on the one before, they count the steps: a node belongs to
the step of the last anchor it depends on. The nodes of a step that later steps depend on are its
*core*. The second step is the template that all others are compared with, node by node, from the
first step to the last; where a step differs, the chain ends, and it stays unrolled from there.

Each chain takes time linear in the graph: nothing is compared but nodes with their counterparts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, Node, NodeId, Value
from graphopt.ir.ops import info

#: Fewer steps than this are not worth a loop, and do not tell a template from its ends.
MIN_STEPS = 4

#: Where an input of the template comes from: the core itself (node and output), the state of that
#: number, or what is computed before all steps, by the number of the slot.
Source = tuple[str, int, int]
CORE, STATE, BEFORE = "core", "state", "before"


@dataclass
class Chain:
    """Equal steps of an unrolled recurrence.

    Attributes:
        graph: the graph.
        steps: for every step its nodes, in the order of the template.
        sources: for every node of the template, where its inputs come from.
        states: the core value (node and output of the template) that each state is.
        initial: the first value of each state.
        slots: for every slot, its value in each step.
    """

    graph: Graph
    steps: list[list[NodeId]]
    sources: list[list[Source]]
    states: list[tuple[int, int]]
    initial: list[Value]
    slots: list[list[Value]] = field(default_factory=list)

    def value(self, step: int, place: int, output: int) -> Value:
        """A value of a step."""
        return Value(self.steps[step][place], output)

    @property
    def template(self) -> list[Node]:
        """The nodes of the first step."""
        return [self.graph[node] for node in self.steps[0]]


def anchor_classes(graph: Graph) -> list[list[NodeId]]:
    """Nodes that apply one operator to the same weights, as far as there are enough of them.

    In the order of their first members; linear.
    """
    found: dict[tuple[object, ...], list[NodeId]] = defaultdict(list)
    weights: set[Value] = set()
    for node in graph:
        if node.op == PARAM or _is_view_of(node, weights):
            weights.add(node.out())
        elif not node.is_input and not node.graphs and not node.after:
            read = tuple(value if value in weights else None for value in node.inputs)
            if any(read) and not all(read):
                found[node.op, node.attrs, read].append(node.id)
    return [members for members in found.values() if len(members) >= MIN_STEPS]


def _is_view_of(node: Node, values: set[Value]) -> bool:
    return (
        len(node.inputs) == 1 and node.inputs[0] in values and bool(info(node.op, node.attrs).view)
    )


def find_chain(graph: Graph, anchors: Sequence[NodeId]) -> Chain | None:
    """The chain these anchors belong to; ``None`` if they do not depend on one another.

    Raises:
        GraphoptError: they do, but their steps are not alike; the message says why.
    """
    step_of = _count_steps(graph, anchors)
    if step_of is None:
        return None
    needed = _ancestors(graph, anchors[-1])
    by_step: dict[int, list[NodeId]] = defaultdict(list)
    for node in graph:
        if node.id in needed and step_of[node.id] >= 0:
            by_step[step_of[node.id]].append(node.id)
    problem: GraphoptError | None = None
    # The first steps may have another role than the others.
    for start in range(min(3, len(anchors) - MIN_STEPS + 1)):
        try:
            return _Matcher(graph, anchors, step_of, by_step).match(start)
        except GraphoptError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _count_steps(graph: Graph, anchors: Sequence[NodeId]) -> dict[NodeId, int] | None:
    number = {node: at for at, node in enumerate(anchors)}
    step_of: dict[NodeId, int] = {}
    for node in graph:
        step = max((step_of[value.node] for value in node.inputs), default=-1)
        if node.id in number:
            step += 1
            if step != number[node.id]:
                return None
        step_of[node.id] = step
    return step_of


def _ancestors(graph: Graph, node: NodeId) -> set[NodeId]:
    found = {node}
    pending = [node]
    while pending:
        for value in graph[pending.pop()].inputs:
            if value.node not in found:
                found.add(value.node)
                pending.append(value.node)
    return found


class _Matcher:
    def __init__(
        self,
        graph: Graph,
        anchors: Sequence[NodeId],
        step_of: dict[NodeId, int],
        by_step: dict[int, list[NodeId]],
    ) -> None:
        self.graph, self.anchors, self.step_of, self.by_step = graph, anchors, step_of, by_step

    def match(self, start: int) -> Chain:
        """Compare all steps from ``start`` on with the second of them."""
        template = start + 1
        nodes = self.by_step[template]
        place = {node: at for at, node in enumerate(nodes)}
        sources, state_values, before = self._classify(nodes, place, template)
        chain = Chain(self.graph, [], sources, [], [])
        self.chain = chain
        first = self._step(start, nodes, None)
        if first is None:
            raise GraphoptError(f"step {start} is not like the next")
        chain.steps.append(first)
        at_first = {node: at for at, node in enumerate(first)}
        for value in state_values:
            if value.node not in at_first:
                raise GraphoptError(
                    f"{_label(self.graph[value.node])} is read one step later and is not computed"
                    " in every step"
                )
            chain.states.append((at_first[value.node], value.index))
        chain.initial = self._reads(first, STATE, len(state_values))
        chain.slots = [[value] for value in self._reads(first, BEFORE, len(before))]
        for step in range(template, len(self.anchors)):
            found = nodes if step == template else self._step(step, nodes, chain.steps[-1])
            if found is None:
                break
            chain.steps.append(list(found))
            for slot, value in zip(
                chain.slots, self._reads(found, BEFORE, len(before)), strict=True
            ):
                slot.append(value)
        if len(chain.steps) < MIN_STEPS:
            raise GraphoptError(f"step {start + len(chain.steps)} is not like those before it")
        return chain

    def _classify(
        self, nodes: Sequence[NodeId], place: dict[NodeId, int], step: int
    ) -> tuple[list[list[Source]], list[Value], list[tuple[int, int]]]:
        """Where the inputs of the template come from; values of states; where slots are read."""
        states: dict[Value, int] = {}
        before: dict[Value, int] = {}
        read_at: list[tuple[int, int]] = []
        sources: list[list[Source]] = []
        for node in nodes:
            reads: list[Source] = []
            if self.graph[node].graphs or self.graph[node].after:
                raise GraphoptError(f"{_label(self.graph[node])} is ordered after another node")
            for position, value in enumerate(self.graph[node].inputs):
                source_step = self.step_of[value.node]
                if value.node in place:
                    reads.append((CORE, place[value.node], value.index))
                elif source_step == step - 1:
                    reads.append((STATE, states.setdefault(value, len(states)), 0))
                elif source_step < 0:
                    if value not in before:
                        before[value] = len(before)
                        read_at.append((len(sources), position))
                    reads.append((BEFORE, before[value], 0))
                else:
                    raise GraphoptError(
                        f"{_label(self.graph[node])} reads a state of an earlier step than the last"
                    )
            sources.append(reads)
        return sources, list(states), read_at

    def _step(
        self, step: int, template: Sequence[NodeId], previous: Sequence[NodeId] | None
    ) -> list[NodeId] | None:
        """The nodes of a step in the order of the template, or ``None`` if it is not like it."""
        found: list[NodeId] = []
        anchor = self.anchors[template_step(self.step_of, template)]
        for at, wanted in enumerate(template):
            if wanted == anchor:
                candidates: Iterable[NodeId] = [self.anchors[step]]
            else:
                candidates = self._candidates(at, found)
            node = next(
                (c for c in candidates if self._fits(c, at, wanted, step, found, previous)), None
            )
            if node is None:
                return None
            found.append(node)
        return found

    def _candidates(self, at: int, found: Sequence[NodeId]) -> list[NodeId]:
        """Nodes that read what a node of the template reads from the core."""
        for position, (kind, place, output) in enumerate(self.chain.sources[at]):
            if kind == CORE:
                users = self.graph.users(Value(found[place], output))
                return [use.node for use in users if use.position == position]
        return []

    def _fits(
        self,
        candidate: NodeId,
        at: int,
        wanted: NodeId,
        step: int,
        found: Sequence[NodeId],
        previous: Sequence[NodeId] | None,
    ) -> bool:
        node, like = self.graph[candidate], self.graph[wanted]
        if (node.op, node.attrs, node.types) != (like.op, like.attrs, like.types):
            return False
        if len(node.inputs) != len(like.inputs) or node.graphs or node.after:
            return False
        for value, (kind, place, output) in zip(node.inputs, self.chain.sources[at], strict=True):
            if kind == CORE:
                if value != Value(found[place], output):
                    return False
            elif kind == STATE:
                if previous is None:
                    if self.step_of[value.node] >= step:
                        return False
                    continue
                source, index = self.chain.states[place]
                if value != Value(previous[source], index):
                    return False
            elif self.step_of[value.node] >= 0:
                return False
        return self._reads_alike(node, at)

    def _reads_alike(self, node: Node, at: int) -> bool:
        """Whether inputs that are one value in the template are one here."""
        seen: dict[Source, Value] = {}
        return all(
            seen.setdefault(source, value) == value
            for value, source in zip(node.inputs, self.chain.sources[at], strict=True)
        )

    def _reads(self, nodes: Sequence[NodeId], kind: str, count: int) -> list[Value]:
        """What a step reads as states or slots, by their numbers.

        Raises:
            GraphoptError: two nodes read different values where the template has one.
        """
        found: dict[int, Value] = {}
        for node, sources in zip(nodes, self.chain.sources, strict=True):
            for value, (what, number, _) in zip(
                self.graph[node].inputs, sources, strict=True
            ):
                if what == kind and found.setdefault(number, value) != value:
                    raise GraphoptError(
                        f"{_label(self.graph[node])} reads another value than its step does"
                    )
        return [found[number] for number in range(count)]


def template_step(step_of: dict[NodeId, int], template: Sequence[NodeId]) -> int:
    """The number of the step the template is."""
    return step_of[template[0]]


def _label(node: Node) -> str:
    return f"{node.name or node.id!r} ({node.op})"
