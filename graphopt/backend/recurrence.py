"""Recurrences and trees on their way to MXNet."""

from __future__ import annotations

from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE, TREE


def with_stash(graph: Graph) -> Graph:
    """A copy in which they keep what backward needs; without it, backward computes it again."""
    kept = graph.copy()
    for node in graph:
        if node.op in (RECURRENCE, TREE):
            kept.update(node.but(attrs=node.attrs.set(stash=True)))
    return kept
