"""What operators do besides computing their outputs, and what that forbids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, CONSTANT, WITH_SPEC, Node, NodeId, Value
from graphopt.ir.ops import canonical, info, is_known

#: Operators that run code of users, or of libraries that they loaded.
_FOREIGN: Final = frozenset(
    {"Custom", "_CachedOp", "_CachedOpThreadSafe", "_CustomFunction", "_NDArray", "_Native"}
)
#: Operators that draw masks.
MASKING: Final = frozenset({"Dropout", "RNN", "LeakyReLU"})


def is_pure(node: Node, *, training: bool) -> bool:
    """Whether a node only computes its outputs, and the same ones whenever its inputs are equal.

    Nodes with nested graphs (but fused regions) or control dependencies are not pure: somebody
    meant their order.
    """
    if node.is_input or node.op == CONSTANT:
        return True
    if node.after or (node.graphs and node.op not in WITH_SPEC):
        return False
    return info(node.op, node.attrs).is_pure(training=training)


def is_loss(node: Node) -> bool:
    """Whether it has a gradient of its own, whatever comes to it: a loss layer or its kernel."""
    if node.is_input or node.op == CONSTANT:
        return False
    return info(node.op, node.attrs).loss or " loss_of " in str(node.attrs.get("spec", ""))


def may_repeat(graph: Graph, *, training: bool) -> bool:
    """Whether one more call of the graph does no harm but for random numbers that it takes.

    It may where an operator writes to a state, or is the user's own: that may count its calls, and
    need not compute the same again. What a graph in it draws cannot be told from such.
    """
    return not any(_leaves_traces(node, training=training) for node in graph)


def _leaves_traces(node: Node, *, training: bool) -> bool:
    if node.is_input or is_pure(node, training=training):
        return False
    if not is_known(node.op) or canonical(node.op) in _FOREIGN:
        return True
    facts = info(node.op, node.attrs)
    if facts.mutates and (training or not facts.mode_dependent):
        return True
    return not all(
        may_repeat(graph, training=training) and not may_draw(graph, training=training)
        for graph in node.graphs
    )


def is_noticed(node: Node, *, training: bool) -> bool:
    """Whether running a node once more, on states of its own, changes what comes after it.

    It draws numbers, or runs code of users.
    """
    if node.is_input or is_pure(node, training=training):
        return False
    if is_foreign(node.op) or info(node.op, node.attrs).random:
        return True
    return any(is_noticed(inner, training=training) for graph in node.graphs for inner in graph)


def has_foreign_operators(graph: Graph) -> bool:
    """Whether it has operators of users, or of libraries that they loaded.

    These may keep something from call to call, so it matters when MXNet makes them: once for an
    executor, and for a CachedOp with ``static_shape``; else for each call.
    """
    operators = (node for node in graph if not node.is_input and node.op != CONSTANT)
    return any(
        is_foreign(node.op) or any(map(has_foreign_operators, node.graphs)) for node in operators
    )


def is_foreign(op: str) -> bool:
    """Whether an operator, no input or constant, is one of these; the bridge's own are not."""
    is_unknown = not is_known(op) and not op.startswith("graphopt_")
    return is_unknown or canonical(op) in _FOREIGN


def may_draw(graph: Graph, *, training: bool) -> bool:
    """Whether a call may take numbers from the generator, as an unknown operator might."""
    for node in graph:
        if not is_pure(node, training=training):
            facts = info(node.op, node.attrs)
            if facts.random or not facts.mutates:
                return True
    return False


def draws_from_stream(op: str, attrs: Attrs, graphs: Iterable[Graph] = ()) -> bool:
    """Whether an operator, or one in graphs of its own, draws numbers that a seed is to give again.

    Masks are others in compiled graphs (docs/adr/0040).
    """
    own = canonical(op) not in MASKING and info(op, attrs).random
    return own or any(draws_from_stream(n.op, n.attrs, n.graphs) for g in graphs for n in g)


def held_nodes(graph: Graph) -> frozenset[NodeId]:
    """Nodes that others have to run after. Erasing one would leave a dangling dependency."""
    return graph.derived(
        "held nodes", lambda new: frozenset(before for node in new for before in node.after)
    )


def written_values(graph: Graph, *, training: bool) -> frozenset[Value]:
    """Values that some operator overwrites, so that it matters when they are read. Linear.

    An auxiliary state counts as written wherever an impure operator reads it.
    """
    return frozenset(
        value for node in graph for value in _written_by(graph, node, training=training)
    )


def behind_rivals(graph: Graph, *, training: bool) -> frozenset[NodeId]:
    """Operators that write a state which others write too, and all that read of them. Linear.

    What such a state is in the end depends on who writes it last.
    """
    written = {
        node.id: values for node in graph if (values := _written_by(graph, node, training=training))
    }
    writers = Counter(value for values in written.values() for value in values)
    rivals = {node for node, values in written.items() if any(writers[v] > 1 for v in values)}
    if not rivals:
        return frozenset()
    behind: set[NodeId] = set()
    for node in graph.topological():
        if node.id in rivals or any(value.node in behind for value in node.inputs):
            behind.add(node.id)
    return frozenset(behind)


def _written_by(graph: Graph, node: Node, *, training: bool) -> set[Value]:
    if is_pure(node, training=training):
        return set()
    positions = info(node.op, node.attrs).writes(len(node.inputs))
    states = (value for value in node.inputs if graph[value.node].op == AUX)
    return {*(node.inputs[at] for at in positions), *states}
