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


def inline(target: Graph, node: Node, body: Graph) -> dict[Value, Value]:
    """Put the operators of ``body`` in the place of a node; returns where its values are now."""
    new = {inner.out(): value for inner, value in zip(body.inputs, node.inputs, strict=True)}
    for inner in body:
        if not inner.is_input:
            transplant(target, inner, new)
    for index, value in enumerate(body.outputs):
        target.replace_uses(node.out(index), new[value])
    target.erase(node.id)
    return new


def substitute_outputs(graph: Graph, new: Mapping[Value, Value]) -> None:
    """Make the graph return ``new[value]`` for every ``value`` in ``new``."""
    outputs = tuple(new.get(value, value) for value in graph.outputs)
    if outputs != graph.outputs:
        graph.set_outputs(outputs)
