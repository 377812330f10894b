"""Recurrences that keep their packed weights from call to call.

A write to a parameter is noticed: MXNet's engine counts writes, and the operator that runs such a
node compares the count (kernels/bridge/keeping_operator.h). So this is for graphs that are not
frozen, too.
"""

from __future__ import annotations

from typing import Any

from graphopt.analysis.effects import written_values
from graphopt.backend.documents import text_of
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, KEEPING, PARAM, RECURRENCE, Node, Value
from graphopt.kernels import bridge
from graphopt.kernels.bridge.versions import fit
from graphopt.kernels.recurrence.spec import parse


def keeping(graph: Graph) -> Graph:
    """A copy for inference whose recurrences pack their matrices when these were written.

    Recurrences are left as they are whose matrices something in the graph computes or writes, and
    all where MXNet does not lay out arrays as the bridge reads them.
    """
    nodes = [node for node in graph if node.op == RECURRENCE]
    if not nodes or not fit(import_mxnet()):
        return graph
    written = written_values(graph, training=False)
    copy = graph.copy()
    for node in nodes:
        matrices = matrices_of(node)
        if matrices and all(
            graph[value.node].op in (PARAM, CONSTANT) and value not in written for value in matrices
        ):
            copy.update(copy[node.id].but(attrs=node.attrs.set(keeps=True)))
    return copy


def keeps(node: Node) -> bool:
    """Whether a node is a recurrence that keeps its packed weights."""
    return node.op == RECURRENCE and node.attrs.flag("keeps")


def forgetting(graph: Graph) -> Graph:
    """A copy whose recurrences keep nothing, as what is exported has them."""
    copy = graph.copy()
    for node in graph:
        if keeps(node):
            copy.update(copy[node.id].but(attrs=node.attrs.without("keeps")))
    return copy


def matrices_of(node: Node) -> tuple[Value, ...]:
    """Those of a recurrence's inputs that are packed."""
    spec = parse(str(node.attrs["spec"]))
    directions = 2 if node.attrs.flag("bidirectional") else 1
    states = 0 if node.attrs.flag("zero_states") else directions * len(spec.states)
    first = len(spec.sequences) + states
    return tuple(node.inputs[first : first + directions * len(spec.matrices)])


def runs_keeping(symbol: Any) -> bool:
    """Whether a Symbol has recurrences that keep their packed weights."""
    return f'"{KEEPING}"' in text_of(symbol)


def told(graph: Graph) -> str:
    """What ``explain()`` says of a graph that runs; empty if nothing is kept."""
    nodes = [node for node in graph if keeps(node)]
    if not nodes:
        return ""
    count = "a recurrence" if len(nodes) == 1 else f"{len(nodes)} recurrences"
    megabytes = sum(map(_bytes, nodes)) / 1e6
    return (
        f"those of {count} are packed once and kept in {megabytes:.2g} MB,"
        " and packed again when they were written to"
    )


def _bytes(node: Node) -> int:
    library = bridge.load(import_mxnet())
    names = ("lengths", "bidirectional", "indexed", "by_vectors")
    flags = [node.attrs.flag(name) for name in names]
    found = int(library.graphopt_kept_bytes(str(node.attrs["spec"]).encode(), *map(int, flags)))
    if found < 0:
        raise GraphoptError(f"{node.label}: {library.graphopt_error().decode()}")
    return found


def flush_bulk() -> None:
    """Start what ``mx.engine.bulk`` holds back: what it writes is counted for what follows."""
    set_size = import_mxnet().engine.set_bulk_size
    set_size(set_size(0))
