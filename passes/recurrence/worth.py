"""Which recurrences are better left to fusion."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.ir.graph import Graph
from graphopt.ir.node import NodeId
from graphopt.ir.ops import canonical
from graphopt.passes.fusion.fuse import MAX_MEMBERS, MAX_OPERANDS
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.rows import ROWS


def fit_one_kernel(graph: Graph, nodes: Iterable[NodeId]) -> bool:
    """Whether one fused kernel may compute all steps that these nodes make.

    It keeps the states in registers, and so is the faster one. What takes more operators or
    operands than a kernel may have is cut up between steps, and a recurrence is twice as fast.
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
