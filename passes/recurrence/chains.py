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
from collections.abc import Sequence
from dataclasses import dataclass, field

from graphopt.analysis.needed import needed_for
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.passes.recurrence.anchors import MIN_STEPS, count_steps
from graphopt.passes.recurrence.matching import Matcher
from graphopt.passes.recurrence.templates import BEFORE, STATE, Source, Template, Templates


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


def find_chain(graph: Graph, anchors: Sequence[NodeId]) -> Chain | None:
    """The chain these anchors belong to; ``None`` if they do not depend on one another.

    Raises:
        GraphoptError: they do, but their steps are not alike; the message says why.
    """
    step_of = count_steps(graph, anchors)
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


class _Search:
    def __init__(self, graph: Graph, anchors: Sequence[NodeId], step_of: dict[NodeId, int]) -> None:
        self.graph, self.anchors = graph, anchors
        self.templates = Templates(graph, anchors, step_of)
        self.matcher = Matcher(graph, anchors, step_of)
        self.order = {node.id: at for at, node in enumerate(graph)}
        needed = needed_for(graph, [graph[anchors[-1]].out()])
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
        chain.initial = self.matcher.reads(first, template, STATE, len(template.states))
        chain.slots = [
            [v] for v in self.matcher.reads(first, template, BEFORE, len(template.before))
        ]
        for step in range(start + 1, len(self.anchors)):
            found = self.matcher.match(template, step, chain.steps[-1], chain.states)
            if found is None:
                break
            chain.steps.append(found)
            read = self.matcher.reads(found, template, BEFORE, len(template.before))
            for slot, value in zip(chain.slots, read, strict=True):
                slot.append(value)
        if len(chain.steps) < MIN_STEPS:
            raise GraphoptError(f"step {start + len(chain.steps)} is not like those before it")
        return chain

    def _states(self, template: Template) -> list[tuple[int, int]]:
        """The core value that each state is: what the step behind the template reads of it."""
        following = self.matcher.match(template, template.step + 1, None, [])
        if following is None:
            raise GraphoptError(f"step {template.step + 1} is not like the one before it")
        place = {node: at for at, node in enumerate(template.nodes)}
        found = []
        for value in self.matcher.reads(following, template, STATE, len(template.states)):
            if value.node not in place:
                raise GraphoptError(
                    f"{self.graph[value.node].label} is read one step later and is not computed"
                    " in every step"
                )
            found.append((place[value.node], value.index))
        return found

    def _first(
        self, template: Template, start: int, states: Sequence[tuple[int, int]]
    ) -> list[NodeId]:
        """The nodes of the first step.

        Its states may be one value, often zeros, so that what reads them can be taken for each
        other. The next step tells.
        """

        def is_followed(nodes: list[NodeId]) -> bool:
            return self.matcher.match(template, start + 1, nodes, states) is not None

        found = self.matcher.match(template, start, None, [], is_followed)
        if found is None:
            raise GraphoptError(f"step {start} is not like the next")
        return found

    def _late_template(self, step: int) -> Template:
        """A step with as few states as possible.

        What only the next step reads may as well be computed there, from other states: then fewer
        of them have to be handed on. Which, is a minimum cut between two steps.
        """
        early = self.templates.at(self.core[step], step)
        following = self.matcher.match(early, step + 1, None, [])
        if following is None:  # before the cut is made, which takes longer
            raise GraphoptError(f"step {step + 1} is not like the one before it")
        late = self.templates.late(early, step)
        if not late:
            return early
        moved = [early.nodes[at] for at in sorted(late)]
        stay = [node for at, node in enumerate(following) if at not in late]
        return self.templates.at(sorted(moved + stay, key=self.order.__getitem__), step + 1)
