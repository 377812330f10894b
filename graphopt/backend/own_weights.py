"""Weights that MXNet would write in every call, as copies of the user's.

MXNet's Deconvolution brings its weights into the order that oneDNN wants, in place, wherever they
are in the plain one. For numbers of channels that do not fill vectors that order is the plain one,
so they are brought into it again by every call, and count as written.
"""

from __future__ import annotations

from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.ir.ops import canonical

#: Channels that fill a vector of AVX-512; where vectors are shorter, copies do no harm.
_LANES: Final = 16


def with_own_weights(graph: Graph) -> Graph:
    """The graph with copies of inputs that deconvolutions would go on writing."""
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
    if canonical(node.op) != "Deconvolution" or not graph[node.inputs[1].node].is_input:
        return False
    channels = (graph.type_of(node.inputs[1]).shape or ())[:2]
    return any((extent or 0) % _LANES for extent in channels)
