"""Fused regions put back into MXNet's operators, where those turn out faster."""

from __future__ import annotations

from collections.abc import Callable

from graphopt.backend.heads import in_mxnets_operators, of_interleaved, reads_heads
from graphopt.backend.unroll import unroll
from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import (
    ATTENTION,
    BATCH_NORM,
    CONVOLUTIONS,
    DENSE,
    DROPOUT,
    FUSED,
    INTERLEAVED_DOT,
    PARALLEL_BATCH_DOT,
    PRODUCT,
    RECURRENCE,
    TREE,
    Node,
)
from graphopt.ir.ops import canonical
from graphopt.rewrite.substitute import inline

#: What oneDNN computes an activation with, in one call.
_ANCHORS = frozenset({"FullyConnected", "Convolution"})
#: What MXNet has operators for, though no nested graph says so.
_OPERATORS = frozenset({DENSE, INTERLEAVED_DOT, PARALLEL_BATCH_DOT, RECURRENCE, TREE})
_ACTIVATIONS = frozenset({"Activation", "LeakyReLU", "clip", "relu", "sigmoid", "tanh"})


def is_fused(graph: Graph) -> bool:
    """Whether the graph has operators of ours that MXNet's can take the place of."""
    return any(_region(node) is not None or node.op in _OPERATORS for node in graph)


def has_plain_form(graph: Graph) -> bool:
    """Whether MXNet has operators for all recurrences, so that none needs to be unrolled."""
    return all(node.op not in (RECURRENCE, TREE) or _region(node) is not None for node in graph)


def unfuse(graph: Graph, which: Callable[[Graph, Node], bool] = lambda _g, _n: True) -> Graph:
    """A copy in which nodes of ours are MXNet's operators again, those that ``which`` chooses."""
    plain = graph.copy()
    for node in graph:
        if not which(graph, node):
            continue
        body = _region(node)
        if node.op == PARALLEL_BATCH_DOT:
            if reads_heads(node):
                body = in_mxnets_operators(graph, node)
            else:
                plain.update(plain[node.id].but(op="batch_dot"))
        if node.op == DENSE:
            plain.update(plain[node.id].but(op="FullyConnected"))
        if node.op == INTERLEAVED_DOT:
            op, attrs = of_interleaved(node)
            plain.update(plain[node.id].but(op=op, attrs=attrs))
        if node.op == DROPOUT:
            attrs = Attrs(p=node.attrs["p"])
            reads = plain[node.id].inputs[:1]  # without the seed
            plain.update(plain[node.id].but(op="Dropout", inputs=reads, attrs=attrs))
        now = plain[node.id]
        if body is None:
            if node.op == TREE:
                raise GraphoptError(
                    f"{node.label}: MXNet has no operators for trees: keep the kernels"
                )
            if node.op == RECURRENCE:
                for index, value in enumerate(unroll(plain, now)):
                    plain.replace_uses(now.out(index), value)
                plain.erase(node.id)
            continue
        inline(plain, now, body)
    return plain


def follows_anchor(graph: Graph, node: Node) -> bool:
    """Whether a region is nothing but an activation behind a matrix product or convolution."""
    body = _region(node)
    if body is None or node.op in (CONVOLUTIONS, PRODUCT) or len(node.inputs) != 1:
        return False
    inner = [n for n in body if not n.is_input]
    source = graph[node.inputs[0].node]
    return (
        len(inner) == 1
        and canonical(inner[0].op) in _ACTIVATIONS
        and canonical(source.op) in _ANCHORS
    )


def _region(node: Node) -> Graph | None:
    """What a node stands for in MXNet's operators, with its inputs and outputs."""
    if node.op == RECURRENCE:
        is_cpu_form = not node.attrs.get("lengths")
        return node.graphs[1] if len(node.graphs) > 1 and is_cpu_form else None
    has_body = node.op in (ATTENTION, BATCH_NORM, FUSED, CONVOLUTIONS, PRODUCT)
    return node.graphs[0] if has_body and node.graphs else None
