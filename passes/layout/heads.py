"""Attention's heads: matrices that are transposed to lie one behind the other for ``batch_dot``."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.passes.layout.transposes import TRANSPOSES, order_of
from graphopt.passes.layout.views import VIEWS, static_shape

#: From (batch, rows, heads, columns) to (batch, heads, rows, columns) or (..., columns, rows).
_SPLIT, _SPLIT_AND_TURNED = (0, 2, 1, 3), (0, 2, 3, 1)


@dataclass(frozen=True)
class Heads:
    """Matrices as they lie: of ``value`` (batch, rows, heads, columns).

    ``nodes`` are what is between them and the product, in topological order; ``is_turned`` says
    that they transpose every matrix besides.
    """

    value: Value
    count: int
    is_turned: bool
    nodes: tuple[Node, ...]


def heads_read(graph: Graph, operand: Value, held: frozenset[NodeId] | set[NodeId]) -> Heads | None:
    """The heads that an operand (products, rows, columns) of a product is made of, if it is."""
    shape = static_shape(graph.type_of(operand))
    chain = []
    node = graph[operand.node]
    while canonical(node.op) in VIEWS and len(node.inputs) == 1 and _is_free(node, held):
        chain.append(node)
        node = graph[node.inputs[0].node]
    source = _source(graph, node)
    if shape is None or len(shape) != 3 or source is None or not _is_free(node, held):
        return None
    order, (batch, _, heads, _) = source
    if order not in (_SPLIT, _SPLIT_AND_TURNED):
        return None
    split = static_shape(node.type)
    if split is None or (batch * heads, *split[2:]) != shape:
        return None
    nodes = (node, *reversed(chain))
    return Heads(node.inputs[0], heads, order == _SPLIT_AND_TURNED, nodes)


def heads_written(
    graph: Graph, product: Value, held: frozenset[NodeId] | set[NodeId]
) -> Heads | None:
    """The heads that a product's result (products, rows, columns) becomes, and nothing else."""
    shape = static_shape(graph.type_of(product))
    chain: list[Node] = []
    value = product
    while not graph.is_output(value) and len(graph.users(value)) == 1:
        node = graph[next(iter(graph.users(value))).node]
        if not _is_free(node, held):
            return None
        chain.append(node)
        value = node.out()
        if canonical(node.op) in VIEWS and len(node.inputs) == 1:
            continue
        source = _source(graph, node)
        if source is None or shape is None or source[0] != _SPLIT:
            return None
        _, (batch, heads, rows, columns) = source
        if (batch * heads, rows, columns) != shape:
            return None
        return Heads(value, heads, False, tuple(chain))
    return None


def _is_free(node: Node, held: frozenset[NodeId] | set[NodeId]) -> bool:
    return node.id not in held and not node.after


def _source(graph: Graph, node: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Order and shape of what a transpose of rank 4 reads."""
    if canonical(node.op) not in TRANSPOSES:
        return None
    shape = static_shape(graph.type_of(node.inputs[0]))
    if shape is None or len(shape) != 4:
        return None
    return order_of(node, 4), shape
