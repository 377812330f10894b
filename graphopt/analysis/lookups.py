"""Inputs of a graph that become numbers of rows to look up."""

from __future__ import annotations

from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId
from graphopt.ir.ops import Gradient, canonical, info

#: Operators whose first input MXNet refuses to differentiate by, where it might have gradients.
_LOOK_UP: Final = frozenset({"Embedding", "_contrib_SparseEmbedding"})


def numbers_of_rows(graph: Graph) -> frozenset[str]:
    """Names of inputs that become what an Embedding looks up; MXNet does not differentiate by them.

    Linear.
    """
    pending = [node.inputs[0].node for node in graph if looks_up(node)]
    found = set(pending)
    while pending:
        node = graph[pending.pop()]
        if _passes_on(node):
            fresh = {value.node for value in node.inputs} - found
            found |= fresh
            pending += fresh
    return frozenset(graph[number].name for number in found if graph[number].is_input)


def only_numbers_of_rows(graph: Graph) -> frozenset[str]:
    """Those of them that no gradient comes to but from a lookup, which has none. Linear."""
    led = {value.node for value in graph.outputs}  # nodes that a gradient comes to
    for node in reversed(list(graph.topological())):
        if node.id in led and _passes_on(node):
            led.update(_read(node))
    inputs = {node.name: node.id for node in graph.inputs}
    return frozenset(name for name in numbers_of_rows(graph) if inputs[name] not in led)


def looks_up(node: Node) -> bool:
    """Whether its first input is numbers of rows."""
    return canonical(node.op) in _LOOK_UP


def _read(node: Node) -> list[NodeId]:
    first = int(looks_up(node))
    return [value.node for value in node.inputs[first:]]


def _passes_on(node: Node) -> bool:
    return info(node.op, node.attrs).gradient is not Gradient.NONE
