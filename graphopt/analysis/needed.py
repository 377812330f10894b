"""What values are computed from."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.ir.graph import Graph
from graphopt.ir.node import NodeId, Value


def needed_for(graph: Graph, values: Iterable[Value]) -> set[NodeId]:
    """The nodes that compute some values, inputs among them. Linear."""
    found: set[NodeId] = set()
    pending = [value.node for value in values]
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending += [value.node for value in graph[number].inputs]
    return found
