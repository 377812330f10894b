"""MXNet's oneDNN subgraph rewrites, and what keeps them right.

MXNet 1.9.1 fuses ``convolution + sum`` wrongly where the other operand of the sum is also read by
an activation that it could fuse: in ``a + conv(relu(a))`` the relu is lost. Such sums are handed
over as ``add_n``, which the rewrites leave alone and which runs in oneDNN's blocked layouts too.
It also folds a BatchNorm into the convolution in front of it without a look at its axis: one over
another axis than the channels gave wrong values, or wrote past the weights. A sum of one in between
keeps them apart (identities do not).
What it rewrites keeps the weights of its first call, reordered. Where those follow from data, which
may be others in the next, nothing may be rewritten.
A convolution in 8 bits with its output clipped (ReLU6) is prepared right once: MXNet notes in its
state that the clip is done, takes the output for signed ones when it prepares it again, and gives
half of each value. It does so where its weights were written, or bound by another executor.
"""

from __future__ import annotations

from typing import Any, Final

from graphopt.analysis.frozen import frozen_nodes
from graphopt.backend.draw_order import waits_of
from graphopt.backend.symbol import to_symbol
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical

#: Name under which MXNet 1.9 registers the rewrites.
ONEDNN: Final = "MKLDNN"

_CONVOLUTION: Final = "Convolution"
_SUBGRAPH: Final = "_sg_mkldnn_conv"
_CLIP: Final = "clip"
_IDENTITIES: Final = frozenset({"_copy", "identity"})
_NORM: Final = "BatchNorm"
_SUM: Final = "elemwise_add"
_WEIGHTED: Final = frozenset({_CONVOLUTION, "FullyConnected", _NORM})
_ACTIVATIONS: Final = frozenset({"Activation", "LeakyReLU", _CLIP})


def rewritten_symbol(graph: Graph) -> Any:
    """The Symbol after the rewrites (convolution + BN + sum + activation, FC + activation ...).

    Only for parameters that never change: the rewritten operators fold BatchNorm once.
    """
    return to_symbol(guard(graph)).optimize_for(ONEDNN)


def may_rewrite(graph: Graph) -> bool:
    """Whether no weights, or statistics of norms, follow from data, and nothing waits. Linear."""
    if waits_of(graph):
        return False
    fixed = frozen_nodes(graph)
    weighted = (node for node in graph if canonical(node.op) in _WEIGHTED)
    return all(value.node in fixed for node in weighted for value in node.inputs[1:])


def prepared_once(graph: Graph) -> set[str]:
    """Names of inputs whose operators go wrong where they are prepared again. Linear."""
    clipped = (node for node in graph if node.op == _SUBGRAPH and _is_clipped_in_8_bits(node))
    read = (graph[value.node] for node in clipped for value in node.inputs)
    return {node.name for node in read if node.is_input}


def _is_clipped_in_8_bits(node: Node) -> bool:
    return node.attrs.flag("quantized") and any(n.op == _CLIP for g in node.graphs for n in g)


def guard(graph: Graph) -> Graph:
    """The same graph without the sums and norms that MXNet would fuse wrongly. Linear."""
    guarded = graph.copy()
    for node in graph:
        if canonical(node.op) == _NORM and _is_misread(graph, node):
            data, *others = node.inputs
            apart = guarded.add("add_n", (data,), {"num_args": 1}, (graph.type_of(data),))
            guarded.update(node.but(inputs=(apart.out(), *others)))
        if node.op == _SUM and any(_is_activated(graph, node, value) for value in node.inputs):
            guarded.update(node.but(op="add_n", attrs=node.attrs.set(num_args=2)))
    return guarded


def _is_misread(graph: Graph, norm: Node) -> bool:
    """Whether a BatchNorm behind a convolution is over another axis than its channels."""
    source = graph[norm.inputs[0].node]
    while source.op in _IDENTITIES:
        source = graph[source.inputs[0].node]
    axis, rank = norm.attrs.get("axis", 1), source.type.rank
    return canonical(source.op) == _CONVOLUTION and axis not in (1, 1 - (rank or 0))


def _is_activated(graph: Graph, reader: Node, value: Value) -> bool:
    """Whether an activation, perhaps behind identities, reads ``value`` beside ``reader``."""
    pending = [value]
    while pending:
        for use in graph.users(pending.pop()):
            user = graph[use.node]
            if user.op in _ACTIVATIONS:
                return True
            if user.op in _IDENTITIES and user.id != reader.id:
                pending.append(user.out())
    source = graph[value.node]
    return source.op in _IDENTITIES and _is_activated(graph, reader, source.inputs[0])
