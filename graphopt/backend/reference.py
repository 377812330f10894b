"""The numpy interpreter: slow, obvious, the oracle of the tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.backend import reference_ops
from graphopt.backend.heads import in_mxnets_operators, of_interleaved, reads_heads
from graphopt.errors import InputError
from graphopt.ir.constant import constant_array
from graphopt.ir.graph import Graph
from graphopt.ir.node import (
    ATTENTION,
    BATCH_NORM,
    CONSTANT,
    CONVOLUTIONS,
    DENSE,
    FUSED,
    INTERLEAVED_DOT,
    PARALLEL_BATCH_DOT,
    PRODUCT,
    RECURRENCE,
    TREE,
    Node,
    Value,
)
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.recurrence import interpret as recurrence
from graphopt.kernels.recurrence.spec import parse as parse_recurrence
from graphopt.kernels.spec_parser import parse
from graphopt.kernels.tree import interpret as tree
from graphopt.kernels.tree.spec import parse as parse_tree

_FLAGS = ("reverse", "lengths", "batch_major", "bidirectional", "zero_states", "flat", "indexed")

#: Operators of ours that compute what MXNet's do.
_PLAIN = {PARALLEL_BATCH_DOT: "batch_dot", DENSE: "FullyConnected"}

#: Operators of ours that need nothing of the table.
_OURS = frozenset({CONSTANT, DENSE, FUSED, INTERLEAVED_DOT, PARALLEL_BATCH_DOT, RECURRENCE, TREE})

#: Operators of ours that are what their nested graphs are.
_REGIONS = (ATTENTION, BATCH_NORM, CONVOLUTIONS, PRODUCT)

Arrays = list[np.ndarray[Any, Any]]


def run(
    graph: Graph, feeds: Mapping[str, np.ndarray[Any, Any]], *, training: bool = False
) -> Arrays:
    """Evaluate a graph.

    Args:
        graph: only operators that :func:`graphopt.backend.reference_ops.supports`.
        feeds: array per input name; inputs that nothing reads may be left out.
        training: as MXNet's ``is_train``; random operators are refused then.

    Returns:
        One array per output of the graph.

    Raises:
        InputError: an input has no value.
        UnsupportedOp: an operator is outside the reference table.
    """
    values: dict[Value, np.ndarray[Any, Any]] = {}
    for node in graph.topological():
        for index, array in enumerate(_node(graph, node, feeds, values, training=training)):
            values[node.out(index)] = array
    return [values[value] for value in graph.outputs]


def supports(graph: Graph) -> bool:
    """Whether every operator of the graph is in the reference table."""
    return all(
        node.is_input
        or node.op in _OURS
        or (node.op in _REGIONS and node.graphs and supports(node.graphs[0]))
        or (not node.graphs and reference_ops.supports(node.op))
        for node in graph
    )


def _node(
    graph: Graph,
    node: Node,
    feeds: Mapping[str, np.ndarray[Any, Any]],
    values: Mapping[Value, np.ndarray[Any, Any]],
    *,
    training: bool,
) -> Arrays:
    if node.is_input:
        if node.name in feeds:
            return [np.asarray(feeds[node.name])]
        if graph.node_users(node.id) or graph.is_output(node.out()):
            raise InputError(f"input {node.name!r} of graph {graph.name!r} has no value")
        return []
    if node.op == CONSTANT:
        return [constant_array(node)]
    inputs = [values[value] for value in node.inputs]
    if node.op in _REGIONS:
        return _region(node.graphs[0], inputs, training=training)
    if node.op == PARALLEL_BATCH_DOT and reads_heads(node):
        return _region(in_mxnets_operators(graph, node), inputs)
    if node.op == FUSED:
        return evaluate(parse(node.attrs["spec"]), inputs)
    if node.op == RECURRENCE:
        flags = {key: bool(node.attrs.get(key)) for key in _FLAGS}
        return recurrence.run(parse_recurrence(node.attrs["spec"]), inputs, **flags)
    if node.op == TREE:
        indexed = bool(node.attrs.get("indexed"))
        return tree.run(parse_tree(node.attrs["spec"]), inputs, indexed=indexed)
    op, attrs = _PLAIN.get(node.op, node.op), node.attrs
    if op == INTERLEAVED_DOT:
        op, attrs = of_interleaved(node)
    return reference_ops.evaluate(op, inputs, attrs, training=training)


def _region(body: Graph, inputs: Arrays, *, training: bool = False) -> Arrays:
    names = [each.name for each in body.inputs]
    return run(body, dict(zip(names, inputs, strict=True)), training=training)
