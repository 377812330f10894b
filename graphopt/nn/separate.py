"""Nets of which a loss may read one result and leave the others' parameters alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId
from graphopt.ir.ops import info
from graphopt.nn.learning import LearnsInPythonError


def require_common_result(graph: Graph, returned: int, parameters: Iterable[Any]) -> None:
    """Refuse a net with heads that may learn in turns.

    Call by call, backward from one head leaves gradients and running statistics of the others as
    they are. Of one operator it writes all of them: zeros, by which momentum and weight decay move
    weights that no loss has read.

    Args:
        graph: of a Block that is not hybridized; a hybridized one is one operator in MXNet, too.
        returned: how many of its outputs the Block returns, which are the first.
        parameters: of the Block.

    Raises:
        LearnsInPythonError: no result is computed from all parameters that learn.
    """
    if returned < 2:
        return
    learning = {parameter.name for parameter in parameters if parameter.grad_req != "null"}
    common = -1
    for results in _results_of_what_shows(graph, returned, learning):
        common &= results
    if not common:
        raise LearnsInPythonError(
            "where it learns, none of its results is computed from all of its parameters, and"
            " backward leaves those alone that the loss has not read;"
            " hybridize() makes it one operator, as in MXNet"
        )


def _results_of_what_shows(graph: Graph, returned: int, learning: Collection[str]) -> set[int]:
    """The sets of results, as bits, that nodes lead to of which one can tell whether they learn.

    These read a parameter or a state, or are losses; where one is a loss, which has a gradient
    of its own, all that read an input.
    """
    inputs = {node.id: node for node in graph.inputs}
    has_loss = any(info(node.op).loss for node in graph if not node.is_input)
    led: dict[NodeId, int] = {}
    for at, value in enumerate(graph.outputs[:returned]):
        led[value.node] = led.get(value.node, 0) | 1 << at

    def shows(node: Node) -> bool:
        read = [inputs[value.node] for value in node.inputs if value.node in inputs]
        return info(node.op).loss or any(
            has_loss or leaf.op == "aux" or leaf.name in learning for leaf in read
        )

    found = set()
    for node in reversed(graph.topological()):
        results = led.get(node.id, 0)
        if node.is_input or not results:
            continue
        for value in node.inputs:
            led[value.node] = led.get(value.node, 0) | results
        if shows(node):
            found.add(results)
    return found
