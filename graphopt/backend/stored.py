"""What graphopt's operators store for backward, as attributes for MXNet."""

from __future__ import annotations

from graphopt.ir.graph import Graph
from graphopt.ir.node import FUSED, RECURRENCE, TREE


def with_stored(graph: Graph) -> Graph:
    """A copy for training.

    Recurrences and trees keep what backward needs, which they would compute again otherwise. Fused
    kernels do not write over what they read: MXNet's blocks are often larger than what lies in
    them, and an output that is kept for backward would keep the block of something that dies.
    """
    stored = graph.copy()
    for node in graph:
        if node.op in (RECURRENCE, TREE):
            stored.update(node.but(attrs=node.attrs.set(stash=True)))
        elif node.op == FUSED:
            stored.update(node.but(attrs=node.attrs.set(apart=True)))
    return stored
