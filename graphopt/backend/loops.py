"""Loops over rows, in a form of which MXNet computes gradients."""

from __future__ import annotations

from graphopt.backend.infer import LOOPS
from graphopt.ir.graph import Graph
from graphopt.ir.ops import canonical


def with_read_copies(graph: Graph) -> Graph:
    """The graph with copies between inputs of loops' bodies and sums that read them. Linear.

    The gradient of an addend is that of the sum. Where an input is nothing but an addend, MXNet's
    graph of the body's gradients hands on what it is given, and it cannot tell how that is stored.
    """
    loops = [node for node in graph if node.op in LOOPS and any(map(_has_sums, node.graphs))]
    if not loops:
        return graph
    made = graph.copy()
    for loop in loops:
        bodies = tuple(with_read_copies(_copying(body)) for body in loop.graphs)
        made.update(loop.but(graphs=bodies))
    return made


def _has_sums(body: Graph) -> bool:
    return any(canonical(node.op) == "elemwise_add" or node.op in LOOPS for node in body)


def _copying(body: Graph) -> Graph:
    made = body.copy()
    for node in body.inputs:
        sums = [u for u in body.users(node.out()) if canonical(body[u.node].op) == "elemwise_add"]
        if not sums:
            continue
        name = made.unique_name(f"{node.name}_read")
        copy = made.add("_copy", (node.out(),), {}, (node.type,), name).out()
        for use in sums:
            reader = made[use.node]
            inputs = list(reader.inputs)
            inputs[use.position] = copy
            made.update(reader.but(inputs=tuple(inputs)))
    return made
