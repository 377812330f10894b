"""Names of outputs, by which a Module and ``get_internals()`` know them, as they were."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from graphopt.ir.node import CONSTANT, ROLES

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.ir.node import Node

#: What is no operator of MXNet, and goes by its own name.
_UNNAMED: Final = (*ROLES, CONSTANT)


def with_output_names(graph: Graph, original: Graph) -> Graph:
    """A graph that calls its outputs as the one it was made of, where MXNet has a word for that.

    A node of one output takes the name; one of several has it on a copy, which MXNet makes in
    place. What returns an input stays, and so does a value that is returned twice.

    Args:
        graph: what passes made.
        original: what they were given.
    """
    named = graph.copy()
    taken = {node.name for node in graph}
    returned = Counter(graph.outputs)
    outputs = []
    for value, before in zip(graph.outputs, original.outputs, strict=True):
        node, wanted = graph[value.node], original[before.node]
        is_named = node.op not in _UNNAMED and _is_alone(wanted) and returned[value] == 1
        if not is_named or wanted.name in taken:  # which may be by this very node
            outputs.append(value)
        elif len(node.types) == 1:
            outputs.append(named.update(node.but(name=wanted.name)).out())
        else:
            type_ = graph.type_of(value)
            outputs.append(named.add("_copy", [value], types=(type_,), name=wanted.name).out())
        taken.add(wanted.name)
    named.set_outputs(outputs)
    return named


def _is_alone(node: Node) -> bool:
    """Whether the one output of a node is called after it."""
    return bool(node.name) and not node.is_input and len(node.types) == 1
