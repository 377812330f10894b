"""Weights that MXNet would write in every call, as copies of the user's.

MXNet's convolutions bring their weights into the order that oneDNN wants, in place, wherever they
are in the plain one. For numbers of channels that do not fill vectors that order is the plain one,
so they are brought into it again by every call, and count as written.
"""

from __future__ import annotations

from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.ir.ops import canonical

#: Channels that fill the vectors which oneDNN's orders are of: filters of convolutions, and both
#: axes of the transposed ones. Where other numbers do, copies do no harm.
_LANES: Final = {"Convolution": (8, 1), "Deconvolution": (16, 16)}


def with_own_weights(graph: Graph) -> Graph:
    """The graph with copies of inputs that convolutions would go on writing."""
    readers = [node for node in graph if _writes(graph, node)]
    if not readers:
        return graph
    twin = graph.copy()
    for node in readers:
        data, weight, *others = node.inputs
        copied = twin.add("_copy", (weight,), types=(graph.type_of(weight),))
        twin.update(node.but(inputs=(data, copied.out(), *others)))
    return twin


def _writes(graph: Graph, node: Node) -> bool:
    lanes = _LANES.get(canonical(node.op))
    if lanes is None or not graph[node.inputs[1].node].is_input:
        return False
    shape = graph.type_of(node.inputs[1]).shape or ()
    return any((extent or 0) % fill for extent, fill in zip(shape, lanes, strict=False))
