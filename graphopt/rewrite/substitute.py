"""Many values replaced at once."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value


def substitute(graph: Graph, node: Node, new: Mapping[Value, Value]) -> Node:
    """Make ``node`` read ``new[value]`` for every ``value`` in ``new``; returns the node as it is.

    Called for node after node this is linear, where :meth:`Graph.replace_uses`, called for value
    after value, rewrites a node of a thousand inputs a thousand times.
    """
    inputs = tuple(new.get(value, value) for value in node.inputs)
    return node if inputs == node.inputs else graph.update(node.but(inputs=inputs))


def transplant(target: Graph, node: Node, new: dict[Value, Value]) -> None:
    """Copy a node of another graph; ``new`` has its inputs here, and gets its outputs."""
    inputs = [new[value] for value in node.inputs]
    copy = target.add(node.op, inputs, node.attrs, node.types, node.name, origin=node.origin)
    new |= {node.out(i): copy.out(i) for i in range(len(node.types))}


def substitute_outputs(graph: Graph, new: Mapping[Value, Value]) -> None:
    """Make the graph return ``new[value]`` for every ``value`` in ``new``."""
    outputs = tuple(new.get(value, value) for value in graph.outputs)
    if outputs != graph.outputs:
        graph.set_outputs(outputs)
