"""A step of an unrolled recurrence that others are compared with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value

#: Where an input of the template comes from: the core itself (node and output), the state of that
#: number, or what is computed before all steps, by the number of the slot.
Source = tuple[str, int, int]
CORE, STATE, BEFORE = "core", "state", "before"


@dataclass
class Template:
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


class Templates:
    """Makes templates of steps."""

    def __init__(
        self, graph: Graph, anchors: Sequence[NodeId], step_of: Mapping[NodeId, int]
    ) -> None:
        """Of the steps that ``anchors`` count; ``step_of`` tells the step of every node."""
        self.graph, self.anchors, self.step_of = graph, anchors, step_of

    def at(self, nodes: list[NodeId], step: int) -> Template:
        """These nodes of a step as a template."""
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
        return Template(step, nodes, anchor, sources, list(states), list(before))

    def late(self, template: Template, step: int) -> set[int]:
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


def _width(node: Node) -> int:
    """Elements of a node's outputs for one sequence."""
    size = 0
    for type_ in node.types:
        shape = type_.shape or (1,)
        size += (type_.size or 1) // max(shape[0] or 1, 1)
    return max(size, 1)
