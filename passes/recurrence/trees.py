"""Messages and updates in MXNet's operators -> TreeSpec, with what needs no messages in front.

What a message or an update computes from the rows of nodes alone does not wait for any other node.
It becomes a step of its own, which runs over all nodes at once; messages and updates read its
results. In a Tree-LSTM these are the products with the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphopt.cached import cached_property
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Node, NodeId, Value
from graphopt.kernels.recurrence.spec import RecurrenceSpec
from graphopt.kernels.tree.spec import TreeSpec
from graphopt.passes.recurrence.body import Body, translate
from graphopt.rewrite.substitute import transplant


@dataclass(frozen=True)
class Learned:
    """Which parameters a translated part reads, by name.

    Attributes:
        matrices: of each matrix.
        vectors: of which each vector is the sum.
        rows: those of ``vectors`` that are (1, columns), which kernels want as (columns,).
    """

    matrices: tuple[str, ...]
    vectors: tuple[tuple[str, ...], ...]
    rows: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TreeBody:
    """A translated message and update.

    Attributes:
        prepare: what is computed from the rows of nodes alone, or ``None`` if nothing is.
        prepared: its parameters.
        node_rows: what updates read: numbers of what ``prepare`` emits, -1 for the rows themselves.
        edge_rows: the same of messages.
        spec: the rest.
        message: parameters of messages.
        update: parameters of updates.
    """

    prepare: RecurrenceSpec | None
    prepared: Learned
    node_rows: tuple[int, ...]
    edge_rows: tuple[int, ...]
    spec: TreeSpec
    message: Learned
    update: Learned

    @cached_property
    def texts(self) -> tuple[str, str]:
        """Of ``prepare``, empty if there is none, and ``spec``: printing takes long for a call."""
        return "" if self.prepare is None else str(self.prepare), str(self.spec)


def translate_tree(
    message: Graph, update: Graph, reduce: Sequence[str], states: Sequence[int]
) -> TreeBody:
    """The spec of a message and an update.

    Args:
        message: reads the rows of the parent, the child's states, and parameters; returns messages.
        update: reads the rows of the node, the reduced messages, and parameters; returns the
            node's states, and what else it emits. Types are static, with nodes as the first axis.
        reduce: of each message, ``sum``, ``mean`` or ``max``.
        states: columns of each state.

    Raises:
        GraphoptError: kernels cannot compute it; the message names the node and the reason.
    """
    parts = [_Parts(update, "update"), _Parts(message, "message")]
    if not any(part.needed for part in parts):
        parts[0].needed.append(parts[0].rows)  # which tell how many nodes there are
    prepare = _Prepare(parts)
    rows = [[prepare.number(part, value) for value in part.needed] for part in parts]
    waiting = [part.rest() for part in parts]
    spec = TreeSpec(tuple(states), tuple(reduce), waiting[1].spec, waiting[0].spec)
    learned = [learned_of(part.waiting, body) for part, body in zip(parts, waiting, strict=True)]
    made = prepare.translated()
    return TreeBody(
        None if made is None else made.spec,
        Learned((), ()) if made is None else learned_of(prepare.graph, made),
        tuple(rows[0]),
        tuple(rows[1]),
        spec,
        learned[1],
        learned[0],
    )


@dataclass(frozen=True)
class Hoisted:
    """A graph, parted into what its first data input alone makes and the rest.

    Attributes:
        prepare: what is computed from the first input's rows alone.
        prepared: its parameters.
        needed: what the rest reads in front of the other inputs: numbers of what ``prepare`` emits,
            -1 for the rows themselves.
        rest: what remains.
        learned: its parameters.
    """

    prepare: RecurrenceSpec
    prepared: Learned
    needed: tuple[int, ...]
    rest: RecurrenceSpec
    learned: Learned


def hoist(graph: Graph) -> Hoisted | None:
    """What can be computed ahead from the first data input; ``None`` if that saves no product.

    Args:
        graph: reads data inputs, one behind the other, and parameters. Types are static.

    Raises:
        GraphoptError: kernels cannot compute it; the message names the node and the reason.
    """
    part = _Parts(graph, "step")
    prepare = _Prepare([part])
    needed = tuple(prepare.number(part, value) for value in part.needed)
    made = prepare.translated()
    if made is None or not made.spec.matrices:
        return None
    rest = part.rest()
    return Hoisted(
        made.spec,
        learned_of(prepare.graph, made),
        needed,
        rest.spec,
        learned_of(part.waiting, rest),
    )


def learned_of(graph: Graph, body: Body) -> Learned:
    """Which inputs of a graph its translation reads as parameters."""
    names = [node.name for node in graph.inputs]
    vectors = tuple(tuple(names[n] for n in group) for group in body.vectors)
    read = {name for group in vectors for name in group}
    return Learned(
        tuple(names[n] for n in body.matrices),
        vectors,
        frozenset(node.name for node in graph.inputs if node.name in read and node.type.rank != 1),
    )


class _Parts:
    """A message or an update, parted into what needs the rows of nodes alone and the rest."""

    def __init__(self, graph: Graph, what: str) -> None:
        self.graph, self.what = graph, what
        data = [node for node in graph.inputs if node.op == DATA]
        if not data:
            raise GraphoptError(f"the {what} reads no rows of nodes")
        self.rows, self.others = data[0].out(), data[1:]
        self.early = self._early()
        #: Values that the rest reads and does not compute.
        self.needed = self._needed()

    def _early(self) -> set[NodeId]:
        """Nodes that depend on the rows of nodes, and on nothing but them and parameters."""
        late = {node.id for node in self.others}
        found = {self.rows.node}
        for node in self.graph:
            if node.is_input:
                continue
            if any(value.node in late for value in node.inputs):
                late.add(node.id)
            elif any(value.node in found for value in node.inputs):
                found.add(node.id)
        return found

    def _needed(self) -> list[Value]:
        found: dict[Value, None] = {}
        for node in self.graph:
            if node.id not in self.early:
                found |= {value: None for value in node.inputs if value.node in self.early}
        found |= {value: None for value in self.graph.outputs if value.node in self.early}
        return list(found)

    def rest(self) -> Body:
        """What remains, translated; its sequences are what it needs, then the other inputs."""
        graph = self.waiting = Graph(self.what)
        new: dict[Value, Value] = {}
        for n, value in enumerate(self.needed):
            new[value] = graph.add_input(f"row{n}", DATA, self.graph.type_of(value)).out()
        for node in (*self.others, *(n for n in self.graph.inputs if n.op != DATA)):
            new[node.out()] = graph.add_input(node.name, node.op, node.type).out()
        for node in self.graph:
            if not node.is_input and node.id not in self.early:
                transplant(graph, node, new)
        graph.set_outputs(new[value] for value in self.graph.outputs)
        return translate(graph, len(self.needed) + len(self.others), 0)


class _Prepare:
    """What is computed before any message is there."""

    def __init__(self, parts: Sequence[_Parts]) -> None:
        self.graph = Graph("prepare")
        rows = parts[0].graph.type_of(parts[0].rows)
        self.rows = self.graph.add_input("rows", DATA, rows).out()
        self.inputs: dict[str, Value] = {}
        self.known: dict[Any, NodeId] = {}
        self.new: dict[tuple[str, Value], Value] = {}
        self.outputs: dict[Value, int] = {}
        for part in parts:
            self._add(part)
        self.graph.set_outputs(self.outputs)

    def _add(self, part: _Parts) -> None:
        new = {part.rows: self.rows}
        early = [node for node in part.graph if node.id in part.early and not node.is_input]
        for node in early:
            for value in node.inputs:
                source = part.graph[value.node]
                if source.is_input and value not in new:
                    new[value] = self._parameter(source)
            self._copy(node, new)
        for value in part.needed:
            self.new[part.what, value] = new[value]
            if new[value] != self.rows:
                self.outputs.setdefault(new[value], len(self.outputs))

    def _copy(self, node: Node, new: dict[Value, Value]) -> None:
        """Add a node, unless message and update both compute it."""
        key = (node.op, node.attrs, tuple(new[value] for value in node.inputs))
        if key not in self.known:
            transplant(self.graph, node, new)
            self.known[key] = new[node.out()].node
        new |= {node.out(i): Value(self.known[key], i) for i in range(len(node.types))}

    def _parameter(self, node: Node) -> Value:
        if node.name not in self.inputs:
            self.inputs[node.name] = self.graph.add_input(node.name, PARAM, node.type).out()
        return self.inputs[node.name]

    def number(self, part: _Parts, value: Value) -> int:
        """Which of the outputs a value is; -1 for the rows themselves."""
        made = self.new[part.what, value]
        return -1 if made == self.rows else self.outputs[made]

    def translated(self) -> Body | None:
        """As one step, if there is anything to compute."""
        return translate(self.graph, 1, 0) if self.outputs else None
