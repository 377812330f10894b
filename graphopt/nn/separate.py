"""Nets of which a loss may read one result and leave the others' parameters alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId
from graphopt.ir.ops import info
from graphopt.nn.learning import LearnsInPythonError


def require_common_result(
    graph: Graph, returned: int, parameters: Iterable[Any]
) -> CommonResult | None:
    """Refuse a net with heads that may learn in turns.

    Call by call, backward from one head leaves gradients and running statistics of the others as
    they are. Of one operator it writes all of them: zeros, by which momentum and weight decay move
    weights that no loss has read.

    Args:
        graph: of a Block that is not hybridized; a hybridized one is one operator in MXNet, too.
        returned: how many of its outputs the Block returns, which are the first.
        parameters: of the Block.

    Returns:
        What is to be asked before each step, as parameters that are frozen now may learn later;
        ``None`` where nothing is.

    Raises:
        LearnsInPythonError: no result is computed from all parameters that learn.
    """
    if returned < 2:
        return None
    always, of_leaf = _results_of_what_shows(graph, returned)
    known = {parameter.name: parameter for parameter in parameters}
    read = [(known[name], results) for name, results in of_leaf.items() if name in known]
    found = CommonResult(always, [(p, results) for p, results in read if _may_learn(p)])
    found.require()
    return found if found.frozen else None


@dataclass
class CommonResult:
    """The results of a net that are computed from all of its parameters that learn.

    Sets of results are bits.

    Attributes:
        always: the results of what shows whether it learns, whichever parameters do.
        read: the parameters that are read, each with the results that all its readers lead to.
        frozen: those that do not learn yet, and without which there would be fewer.
    """

    always: int
    read: list[tuple[Any, int]]
    frozen: list[Any] = field(default_factory=list, compare=False)

    def require_still(self) -> None:
        """:meth:`require` if more parameters learn by now."""
        if any(parameter.grad_req != "null" for parameter in self.frozen):
            self.require()

    def require(self) -> None:
        """Refuse to learn if there is none.

        Raises:
            LearnsInPythonError: no result is computed from all parameters that learn.
        """
        common = self.always
        for parameter, results in self.read:
            if parameter.grad_req != "null":
                common &= results
        if not common:
            raise LearnsInPythonError(
                "where it learns, none of its results is computed from all of its parameters, and"
                " backward leaves those alone that the loss has not read;"
                " hybridize() makes it one operator, as in MXNet"
            )
        self.frozen = [p for p, results in self.read if p.grad_req == "null" and common & ~results]


def _may_learn(parameter: Any) -> bool:
    """Whether it is neither a state nor a constant."""
    is_constant = isinstance(parameter, import_mxnet().gluon.Constant)
    return bool(parameter._differentiable) and not is_constant


def _results_of_what_shows(graph: Graph, returned: int) -> tuple[int, dict[str, int]]:
    """The results that all nodes lead to of which one can tell whether they learn, as bits.

    These read a state, or are losses; where one is a loss, which has a gradient of its own, all
    that read an input. Those that read a parameter are told apart, by its name.
    """
    inputs = {node.id: node for node in graph.inputs}
    has_loss = any(info(node.op).loss for node in graph if not node.is_input)
    led: dict[NodeId, int] = {}
    for at, value in enumerate(graph.outputs[:returned]):
        led[value.node] = led.get(value.node, 0) | 1 << at

    def leaves(node: Node) -> list[Node]:
        return [inputs[value.node] for value in node.inputs if value.node in inputs]

    def shows(node: Node) -> bool:
        if info(node.op).loss:
            return True
        return any(has_loss or leaf.op == "aux" for leaf in leaves(node))

    always, of_leaf = (1 << returned) - 1, dict[str, int]()
    for node in reversed(graph.topological()):
        results = led.get(node.id, 0)
        if node.is_input or not results:
            continue
        for value in node.inputs:
            led[value.node] = led.get(value.node, 0) | results
        if shows(node):
            always &= results
        for leaf in leaves(node):
            of_leaf[leaf.name] = of_leaf.get(leaf.name, -1) & results
    return always, of_leaf
