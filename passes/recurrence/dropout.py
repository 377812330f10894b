"""Dropout in the steps of a recurrence: masks that are drawn outside of it."""

from __future__ import annotations

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.passes.recurrence.chains import Chain


def draw_outside(graph: Graph, chain: Chain) -> bool:
    """Have the steps of a chain multiply with masks that depend on no state.

    Dropout multiplies with a mask that it draws, so ``Dropout(x)`` is ``x * Dropout(ones)``: the
    same number of random nodes, each with the shape that it had. Returns whether there was one.
    """
    rows = [at for at, node in enumerate(chain.template) if canonical(node.op) == "Dropout"]
    for at in rows:
        for step in chain.steps:
            _draw_outside(graph, graph[step[at]])
    return bool(rows)


def _draw_outside(graph: Graph, node: Node) -> None:
    (data,) = node.inputs
    type_ = graph.type_of(data)
    ones = graph.add(
        "_ones",
        [],
        {"shape": type_.shape, "dtype": type_.dtype},
        [type_],
        _name(graph, node, "ones"),
    )
    mask = graph.add(node.op, [ones.out()], node.attrs, node.types, _name(graph, node, "mask"))
    made = graph.add(
        "elemwise_mul", [data, mask.out()], {}, node.types[:1], _name(graph, node, "dropped")
    )
    graph.replace_uses(Value(node.id, 0), made.out())
    graph.erase(node.id)


def _name(graph: Graph, node: Node, what: str) -> str:
    return graph.unique_name(f"{node.name or 'dropout'}_{what}")
