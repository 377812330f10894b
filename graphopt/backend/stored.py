"""What graphopt's operators store for backward, as attributes for MXNet."""

from __future__ import annotations

from graphopt.backend.passing import with_distinct_gradients
from graphopt.ir.graph import Graph
from graphopt.ir.node import FUSED, RECURRENCE, TREE, Node
from graphopt.kernels.spec_parser import parse


def with_stored(graph: Graph, *, sized: bool = False) -> Graph:
    """A copy for training.

    Recurrences and trees keep what backward needs, which they would compute again otherwise. Fused
    kernels do not write over what they read: MXNet's blocks are often larger than what lies in
    them, and an output that is kept for backward would keep the block of something that dies.
    Inputs that are added have gradients of their own, which MXNet's executors can do without.

    Args:
        graph: what is to be trained.
        sized: it runs on the shapes it states and on no others; then MXNet can plan also what
            gradients are computed in that read nothing of known shape.
    """
    if not sized:
        graph = with_distinct_gradients(graph)
    stored = graph.copy()
    for node in graph:
        if node.op in (RECURRENCE, TREE):
            stored.update(node.but(attrs=node.attrs.set(stash=True)))
        elif node.op == FUSED:
            attrs = node.attrs.set(apart=True)
            extents = _extents(graph, node) if sized else None
            stored.update(node.but(attrs=attrs.set(extents=extents) if extents else attrs))
    return stored


def _extents(graph: Graph, node: Node) -> str | None:
    """Extents of the axes of a kernel, in their order; None where not all are known."""
    spec = parse(str(node.attrs["spec"]))
    types = [graph.type_of(value) for value in node.inputs]
    if not all(type_.is_static for type_ in types):
        return None
    found = {
        axis: extent
        for operand, type_ in zip(spec.inputs, types, strict=True)
        for axis, extent in zip(operand.axes, type_.shape or (), strict=True)
    }
    if not found.keys() >= set(range(spec.rank)):
        return None
    return ",".join(str(found[axis]) for axis in range(spec.rank))
