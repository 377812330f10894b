"""Which values no gradient comes to in training."""

from __future__ import annotations

from graphopt.analysis.effects import is_loss, is_pure
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import Gradient, info, is_known


def without_gradient(graph: Graph) -> frozenset[Value]:
    """Values that only operators without a gradient read, or such as nothing comes to themselves.

    MXNet computes no gradients behind those: what a value would be multiplied with may be infinite,
    as the slope of a square root whose order alone is asked for. Linear.
    """
    found: set[Value] = set()
    silent: set[NodeId] = set()  # nodes that hand on no gradient
    for node in reversed(list(graph.topological())):
        values = [node.out(index) for index in range(len(node.types))]
        for value in values:
            readers = graph.users(value)
            if not graph.is_output(value) and all(use.node in silent for use in readers):
                found.add(value)
        if _has_none(node) or (found.issuperset(values) and _only_hands_on(node)):
            silent.add(node.id)
    return frozenset(found)


def _has_none(node: Node) -> bool:
    return not node.is_input and info(node.op, node.attrs).gradient is Gradient.NONE


def _only_hands_on(node: Node) -> bool:
    """Whether a node's gradients are zero where those of its outputs are."""
    if node.is_input or not is_known(node.op) or not is_pure(node, training=True):
        return False
    return not is_loss(node)
