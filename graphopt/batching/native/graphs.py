"""Graphs with their inputs in an order that is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Value
from graphopt.rewrite.substitute import transplant


def ordered(graph: Graph, names: Sequence[str]) -> Graph:
    """A copy with the inputs ``names`` first.

    Raises:
        GraphoptError: one of them is no input of the graph.
    """
    made = Graph(graph.name)
    known = {node.name: node for node in graph.inputs}
    new: dict[Value, Value] = {}
    for name in names:
        if name not in known:
            raise GraphoptError(f"input {name!r} is not read")
        new[known[name].out()] = made.add_input(name, DATA, known[name].type).out()
    for node in graph.inputs:
        if node.name not in names:
            new[node.out()] = made.add_input(node.name, node.op, node.type).out()
    for node in graph.topological():
        if not node.is_input:
            transplant(made, node, new)
    made.set_outputs(new[value] for value in graph.outputs)
    return made
