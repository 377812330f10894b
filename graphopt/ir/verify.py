"""Check the invariants of a graph.

Stages say which graphs are legal when: ``captured`` is what a frontend lifts, ``optimized`` may
hold graphopt's own operators too.
"""

from __future__ import annotations

from typing import Final, Literal

from graphopt.errors import GraphError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node
from graphopt.ir.ops import info
from graphopt.ir.printer import print_graph, print_node

Stage = Literal["captured", "optimized"]

#: Operators that only graphopt's passes make.
OWN_OPS: Final = frozenset({CONSTANT})

#: How many inputs they take hangs on attributes in ways the operator table does not tell.
_ANY_NUMBER: Final = frozenset({"_npi_bincount", "_npi_delete", "_npi_ediff1d"})


def verify(
    graph: Graph, stage: Stage = "optimized", where: str = "", known: Graph | None = None
) -> None:
    """Raise unless the graph, and every graph nested in it, is well formed.

    Args:
        graph: what to check; linear in its size, and at once if it was not written to since.
        stage: which operators are legal.
        where: named in the message, for example the pass that made the graph.
        known: one that is well formed; of the nodes that it has, too, only the reads are checked.

    Raises:
        GraphError: the first violation, with a window of the text around the node.
    """
    graph.derived(f"verified as {stage}", lambda new: _check(new, stage, where, known))


def _check(graph: Graph, stage: Stage, where: str, known: Graph | None) -> None:
    graph.topological()  # finds cycles and reads of missing nodes
    _check_signature(graph, where)
    given = {node.id for node in graph.inputs}
    for node in graph.topological():
        is_known = known is not None and known.holds(node)
        problem = _problem(graph, node, stage, given=node.id in given, is_known=is_known)
        if problem:
            raise GraphError(_message(graph, node, problem, where))
        for nested in node.graphs:
            verify(nested, stage, where)


def _check_signature(graph: Graph, where: str) -> None:
    at = f" after {where}" if where else ""
    seen: set[str] = set()
    for node in graph.inputs:
        if node.name in seen:
            raise GraphError(f"graph {graph.name!r}{at} has two inputs named {node.name!r}")
        seen.add(node.name)
    if not graph.outputs:
        raise GraphError(f"graph {graph.name!r}{at} returns nothing")
    for value in graph.outputs:
        node = graph[value.node]
        if not 0 <= value.index < len(node.types):
            raise GraphError(
                f"graph {graph.name!r}{at} returns output {value.index} of node {node.name!r},"
                f" which has {len(node.types)}"
            )


def _problem(graph: Graph, node: Node, stage: Stage, *, given: bool, is_known: bool) -> str:
    if given != node.is_input:
        return f"an input of the graph is a {node.op}" if given else "it is no input of the graph"
    for position, value in enumerate(node.inputs):
        outputs = len(graph[value.node].types)
        if not 0 <= value.index < outputs:
            return f"its input {position} is output {value.index} of a node with {outputs}"
    return "" if is_known else _problem_by_itself(node, stage)


def _problem_by_itself(node: Node, stage: Stage) -> str:
    if not node.op:
        return "it has no operator name"
    if not node.types:
        return "it has no outputs"
    if node.is_input and (node.inputs or len(node.types) != 1):
        return "an input reads nothing and has one output"
    if stage == "captured" and node.op in OWN_OPS:
        return f"operator {node.op!r} is made by passes only"
    return "" if node.is_input else _misfit(node)


def _misfit(node: Node) -> str:
    """What is wrong with the number of inputs, where the operator table knows it."""
    facts = info(node.op, node.attrs)
    if not facts.arguments or len(facts.arguments) == len(node.inputs):
        return ""
    if facts.name in _ANY_NUMBER:
        return ""
    plural = "" if len(facts.arguments) == 1 else "s"
    takes = f"{len(facts.arguments)} input{plural} ({', '.join(facts.arguments)})"
    return f"{node.op} takes {takes}, not {len(node.inputs)}"


def _message(graph: Graph, node: Node, problem: str, where: str) -> str:
    at = f" after {where}" if where else ""
    sentence = f"node {node.name!r} of graph {graph.name!r} is malformed{at}: {problem}"
    return f"{sentence}\n{_window(graph, node)}"


def _window(graph: Graph, node: Node, around: int = 5) -> str:
    """The text around a node, with a line of carets under it."""
    target = print_node(graph, node.id)
    lines = print_graph(graph).splitlines()
    at = next(n for n, line in enumerate(lines) if target in line)
    mark = " " * lines[at].index(target) + "^" * len(target)
    marked = [*lines[: at + 1], mark, *lines[at + 1 :]]
    return "\n".join(marked[max(0, at - around) : at + around + 2])
