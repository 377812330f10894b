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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, Node, NodeId, Value
from graphopt.ir.ops import info

#: Fewer steps than this are not worth a loop, and do not tell a template from its ends.
MIN_STEPS = 4

#: Ways to match a step with another that are tried.
MOST_TRIALS = 32

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


def apart(graph: Graph, anchors: Sequence[NodeId]) -> list[Sequence[NodeId]]:
    """Anchors of several chains that share their weights, as an encoder of two sentences has them.

    Each follows the last that it depends on; of several that follow the same, which may be one step
    of zeros for all, the first goes on with its chain. All stay in one where an anchor follows two.
    Chains that are too short are left out. Linear.
    """
    wanted = set(anchors)
    chain_of: dict[NodeId, list[NodeId]] = {}
    chains: list[list[NodeId]] = []
    last: dict[NodeId, tuple[int, frozenset[NodeId]]] = {}  # how many, and the last of them
    for node in graph:
        count, found = max((last[value.node] for value in node.inputs), key=_count, default=_NONE)
        for value in node.inputs:
            other, more = last[value.node]
            if other == count:
                found |= more
        if node.id in wanted:
            if len(found) > 1:
                return [anchors]
            before = next(iter(found), None)
            chain = chain_of[before] if before is not None else []
            if before is None or chain[-1] != before:
                chains.append(chain := [])
            chain.append(node.id)
            chain_of[node.id] = chain
            count, found = count + 1, frozenset({node.id})
        last[node.id] = count, found
    return [chain for chain in chains if len(chain) >= MIN_STEPS]


#: Before all anchors.
_NONE: tuple[int, frozenset[NodeId]] = 0, frozenset()


def _count(last: tuple[int, frozenset[NodeId]]) -> int:
    return last[0]


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
    last = [step_of[anchor] for anchor in anchors]
    if not any(last):
        return None
    if last != list(range(len(anchors))):
        first = graph[anchors[0]]
        raise GraphoptError(f"the weights of {first.label} are used more than once a step")
    search = _Search(graph, anchors, step_of)
    problem: GraphoptError | None = None
    # The first steps may have another role than the others.
    for start in range(min(3, len(anchors) - MIN_STEPS + 1)):
        try:
            return search.chain(start)
        except GraphoptError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _count_steps(graph: Graph, anchors: Sequence[NodeId]) -> dict[NodeId, int]:
    """For every node, how many anchors in a row it depends on, itself included, less one."""
    counted = set(anchors)
    step_of: dict[NodeId, int] = {}
    for node in graph:
        step = max((step_of[value.node] for value in node.inputs), default=-1)
        step_of[node.id] = step + (node.id in counted)
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


@dataclass
class _Template:
    """A step that others are compared with.

    Attributes:
        step: its number.
        nodes: in topological order.
        anchor: the place of the anchor among them.
        sources: for every node, where its inputs come from.
        states: what it reads of the step before.
        before: what it reads from before all steps.
    """

    step: int
    nodes: list[NodeId]
    anchor: int
    sources: list[list[Source]]
    states: list[Value]
    before: list[Value]

    @property
    def readers(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """For a core value, the places and positions where it is read."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for at, reads in enumerate(self.sources):
            for position, (kind, place, output) in enumerate(reads):
                if kind == CORE:
                    found[place, output].append((at, position))
        return found


class _Trials:
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


class _Search:
    def __init__(self, graph: Graph, anchors: Sequence[NodeId], step_of: dict[NodeId, int]) -> None:
        self.graph, self.anchors, self.step_of = graph, anchors, step_of
        self.order = {node.id: at for at, node in enumerate(graph)}
        needed = _ancestors(graph, anchors[-1])
        self.core: dict[int, list[NodeId]] = defaultdict(list)
        for node in graph:
            if node.id in needed and step_of[node.id] >= 0:
                self.core[step_of[node.id]].append(node.id)

    def chain(self, start: int) -> Chain:
        """Compare all steps from ``start`` on with one of the first."""
        template = self._late_template(start + 1)
        states = self._states(template)
        first = self._first(template, start, states)
        chain = Chain(self.graph, [first], template.sources, states, [])
        chain.initial = self._reads(first, template, STATE, len(template.states))
        chain.slots = [[v] for v in self._reads(first, template, BEFORE, len(template.before))]
        for step in range(start + 1, len(self.anchors)):
            found = self._match(template, step, chain.steps[-1], chain.states)
            if found is None:
                break
            chain.steps.append(found)
            read = self._reads(found, template, BEFORE, len(template.before))
            for slot, value in zip(chain.slots, read, strict=True):
                slot.append(value)
        if len(chain.steps) < MIN_STEPS:
            raise GraphoptError(f"step {start + len(chain.steps)} is not like those before it")
        return chain

    def _states(self, template: _Template) -> list[tuple[int, int]]:
        """The core value that each state is: what the step behind the template reads of it."""
        following = self._match(template, template.step + 1, None, [])
        if following is None:
            raise GraphoptError(f"step {template.step + 1} is not like the one before it")
        place = {node: at for at, node in enumerate(template.nodes)}
        found = []
        for value in self._reads(following, template, STATE, len(template.states)):
            if value.node not in place:
                raise GraphoptError(
                    f"{self.graph[value.node].label} is read one step later and is not computed"
                    " in every step"
                )
            found.append((place[value.node], value.index))
        return found

    def _first(
        self, template: _Template, start: int, states: Sequence[tuple[int, int]]
    ) -> list[NodeId]:
        """The nodes of the first step.

        Its states may be one value, often zeros, so that what reads them can be taken for each
        other. The next step tells.
        """

        def is_followed(nodes: list[NodeId]) -> bool:
            return self._match(template, start + 1, nodes, states) is not None

        found = self._match(template, start, None, [], is_followed)
        if found is None:
            raise GraphoptError(f"step {start} is not like the next")
        return found

    # The template

    def _late_template(self, step: int) -> _Template:
        """A step with as few states as possible.

        What only the next step reads may as well be computed there, from other states: then fewer
        of them have to be handed on. Which, is a minimum cut between two steps.
        """
        early = self._template(self.core[step], step)
        following = self._match(early, step + 1, None, [])
        if following is None:  # before the cut is made, which takes longer
            raise GraphoptError(f"step {step + 1} is not like the one before it")
        late = self._late(early, step)
        if not late:
            return early
        moved = [early.nodes[at] for at in sorted(late)]
        stay = [node for at, node in enumerate(following) if at not in late]
        return self._template(sorted(moved + stay, key=self.order.__getitem__), step + 1)

    def _template(self, nodes: list[NodeId], step: int) -> _Template:
        place = {node: at for at, node in enumerate(nodes)}
        states: dict[Value, int] = {}
        before: dict[Value, int] = {}
        sources: list[list[Source]] = []
        for number in nodes:
            node, reads = self.graph[number], []
            if node.graphs or node.after:
                raise GraphoptError(f"{node.label} is ordered after another node")
            for value in node.inputs:
                source_step = self.step_of[value.node]
                if value.node in place:
                    reads.append((CORE, place[value.node], value.index))
                elif source_step == step - 1:
                    reads.append((STATE, states.setdefault(value, len(states)), 0))
                elif source_step < 0:
                    reads.append((BEFORE, before.setdefault(value, len(before)), 0))
                else:
                    raise GraphoptError(
                        f"{node.label} reads a state of an earlier step than the last"
                    )
            sources.append(reads)
        anchor = place[self.anchors[step]]
        return _Template(step, nodes, anchor, sources, list(states), list(before))

    def _late(self, template: _Template, step: int) -> set[int]:
        """Places of nodes to compute one step later."""
        import networkx as nx

        flow = nx.DiGraph()
        flow.add_nodes_from(("start", "end"))
        place = {node: at for at, node in enumerate(template.nodes)}
        for at, number in enumerate(template.nodes):
            node = self.graph[number]
            flow.add_edge(("in", at), ("out", at), capacity=2 * _width(node))
            is_read_outside = any(map(self.graph.is_output, node.values))
            for use in self.graph.node_users(number):
                if use.node in place:
                    flow.add_edge(("out", at), ("in", place[use.node]))
                    # Who is computed later cannot be read earlier.
                    flow.add_edge(("in", place[use.node]), ("in", at))
                elif self.step_of[use.node] == step + 1:
                    flow.add_edge(("out", at), "end")
                else:
                    is_read_outside = True
            # Who reads a state would need it handed on for one step more.
            reads_state = any(kind == STATE for kind, _, _ in template.sources[at])
            if at == template.anchor or reads_state:
                flow.add_edge("start", ("in", at))
            elif is_read_outside:
                # What is computed later is missing after the last step.
                flow.add_edge("start", ("in", at), capacity=1)
        # Of equal cuts networkx finds the one that moves the least.
        early, _ = nx.minimum_cut(flow, "start", "end")[1]
        return {at for at in range(len(template.nodes)) if ("in", at) not in early}

    # Comparing

    def _match(
        self,
        template: _Template,
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
        trials = _Trials()
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

    def _match_once(self, template: _Template, step: int, trials: _Trials) -> list[NodeId] | None:
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

    def _is_seen(self, place: int, found: dict[int, NodeId], template: _Template) -> bool:
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
        template: _Template,
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
        return alike

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
        template: _Template,
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

    def _reads(
        self, nodes: Sequence[NodeId], template: _Template, kind: str, count: int
    ) -> list[Value]:
        """What a step reads as states or from before, by their numbers."""
        found: dict[int, Value] = {}
        for number, reads in zip(nodes, template.sources, strict=True):
            for value, (what, place, _) in zip(self.graph[number].inputs, reads, strict=True):
                if what == kind:
                    found[place] = value
        return [found[number] for number in range(count)]


def _width(node: Node) -> int:
    """Elements of a node's outputs for one sequence."""
    size = 0
    for type_ in node.types:
        shape = type_.shape or (1,)
        size += (type_.size or 1) // max(shape[0] or 1, 1)
    return max(size, 1)
