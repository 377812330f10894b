"""What draws waits for an earlier draw only where MXNet would make them the other way round."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.analysis.effects import draws_from_stream
from graphopt.ir.graph import Graph
from graphopt.ir.node import NodeId

#: For each node that waits, what for.
Waits = dict[NodeId, tuple[NodeId, ...]]


def waits_of(graph: Graph) -> Waits:
    """Control dependencies that a Symbol of the graph has to have.

    Lifted graphs have draws in a row, so that no pass changes their order. MXNet runs operators
    depth first from the outputs. oneDNN's rewrites refuse dependencies, so there is none where that
    gives the same order. Linear.
    """
    declared = {node.id: tuple(node.after) for node in graph if node.after}
    if not declared:
        return declared
    drawing = {node.id for node in graph if draws_from_stream(node.op, node.attrs, node.graphs)}
    others = {
        node: left
        for node, before in declared.items()
        if (left := tuple(b for b in before if node not in drawing or b not in drawing))
    }
    if others == declared:
        return declared
    wanted = [node.id for node in graph.topological() if node.id in drawing]
    visited = [node for node in _visited(graph, others) if node in drawing]
    return others if visited == wanted else declared


def _visited(graph: Graph, waits: Waits) -> Iterable[NodeId]:
    """Nodes in the order in which MXNet visits them: inputs in front, then what they wait for."""
    done: set[NodeId] = set()
    stack = [(value.node, False) for value in reversed(graph.outputs)]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            yield node
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            before = (*(value.node for value in graph[node].inputs), *waits.get(node, ()))
            stack += [(other, False) for other in reversed(before) if other not in done]
