"""What the body of a loop computes anew in every step, and alike: loop-invariant code motion."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.analysis.effects import is_pure
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, Node, NodeId, Value
from graphopt.rewrite.substitute import substitute, substitute_outputs, transplant


def hoist(
    graph: Graph, body: Graph, captured: dict[Value, Value], *, training: bool
) -> dict[Value, Value]:
    """Compute in front of a loop what its body computes of captured values alone.

    A weight that is scaled or transposed in every step is one of those. Linear.

    Args:
        graph: where the loop is; the operators are added to it.
        body: of the loop, with types; what is computed in front becomes an input of it.
        captured: inputs of the body that are the same in all steps, and their values in the graph.
        training: whether the graph is one that is trained.

    Returns:
        The new inputs of the body, and their values in the graph.
    """
    invariant = _invariant(body, captured, training=training)
    outside = dict(captured)
    for node in body:
        if node.id in invariant:
            transplant(graph, node, outside)
    inputs: dict[Value, Value] = {}
    for value in _read_by_the_rest(body, invariant):
        made = body.add_input(body.unique_name("invariant"), PARAM, body.type_of(value))
        inputs[value] = made.out()
    for node in tuple(body):
        if node.id not in invariant:
            substitute(body, node, inputs)
    substitute_outputs(body, inputs)
    for number in reversed(invariant):
        body.erase(number)
    return {made: outside[value] for value, made in inputs.items()}


def _invariant(body: Graph, captured: dict[Value, Value], *, training: bool) -> dict[NodeId, Node]:
    """Operators that read nothing but captured values, sources first."""
    same = {value.node for value in captured}
    found: dict[NodeId, Node] = {}
    for node in body:
        reads = {value.node for value in node.inputs}
        if reads and reads <= same and is_pure(node, training=training) and not node.graphs:
            same.add(node.id)
            found[node.id] = node
    return found


def _read_by_the_rest(body: Graph, invariant: dict[NodeId, Node]) -> Sequence[Value]:
    """Outputs of invariant operators that others read, or the body returns."""
    found: dict[Value, None] = {}
    for node in body:
        if node.id not in invariant:
            found |= {value: None for value in node.inputs if value.node in invariant}
    found |= {value: None for value in body.outputs if value.node in invariant}
    return list(found)
