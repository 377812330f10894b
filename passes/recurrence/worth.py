"""Which recurrences without weights on their states are better left to fusion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical, info
from graphopt.passes.fusion.fuse import MAX_MEMBERS, MAX_OPERANDS
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.rows import ROWS

#: Elements that a state has in all steps, up to which it is soon written and read again.
_FEW = 1 << 17

#: Up to so many values of single steps are cut from all of them in no time.
_SOME = 2


def why_left(
    graph: Graph, nodes: Iterable[NodeId], elements: int, emitted: Sequence[Sequence[Value]]
) -> str | None:
    """Why fusion computes the steps of a chain faster than a recurrence does, if it does.

    Args:
        graph: that has the chain.
        nodes: of all steps.
        elements: that states have in all steps.
        emitted: values of all steps that others may read.
    """
    if elements > _FEW:
        return None
    members = set(nodes)
    read = [[part for part in parts if _readers(graph, part, members)] for parts in emitted]
    if all(len(parts) <= 1 for parts in read):
        if _fit_one_kernel(graph, members):
            return "one kernel computes all of them, which is faster"
    elif any(_are_read_apart(graph, parts, members) for parts in read):
        return "they are read one by one, by kernels that can compute them too"
    return None


def _readers(graph: Graph, value: Value, inside: set[NodeId]) -> list[Node | None]:
    """Nodes elsewhere that read a value; ``None`` for who calls the graph."""
    nodes: list[Node | None] = [graph[u.node] for u in graph.users(value) if u.node not in inside]
    return [*nodes, None] if graph.is_output(value) else nodes


def _are_read_apart(graph: Graph, parts: Sequence[Value], inside: set[NodeId]) -> bool:
    """Whether values of steps are read by themselves, not only joined to a sequence again."""
    apart = [p for p in parts if not all(_joins(graph, n) for n in _readers(graph, p, inside))]
    return len(apart) > _SOME


def _joins(graph: Graph, reader: Node | None) -> bool:
    if reader is None or canonical(reader.op) == "stack":
        return reader is not None
    uses = graph.users(reader.out()) if info(reader.op, reader.attrs).view else ()
    return bool(uses) and all(canonical(graph[use.node].op) == "Concat" for use in uses)


def _fit_one_kernel(graph: Graph, nodes: Iterable[NodeId]) -> bool:
    """Whether one fused kernel may compute all steps that these nodes make.

    It keeps the states in registers. What takes more operators or operands than a kernel may have
    is cut up between steps.
    """
    members = {number for number in nodes if _is_fused(canonical(graph[number].op))}
    if len(members) > MAX_MEMBERS:
        return False
    read = {value for number in members for value in graph[number].inputs}
    left = {
        value
        for number in members
        for value in graph[number].values
        if graph.is_output(value) or any(use.node not in members for use in graph.users(value))
    }
    inputs = {value for value in read if value.node not in members}
    return len(inputs) + len(left) <= MAX_OPERANDS


def _is_fused(op: str) -> bool:
    return op in POINTWISE or op in ROWS
