"""A graph under rewriting: what rules may ask of it, and the only way they write to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from graphopt.ir.attrs import EMPTY, AttrValue
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node, NodeId, Value
from graphopt.ir.ops import canonical, info
from graphopt.ir.types import TensorType

#: A chain of thousands that merges into one node should not carry thousands of names.
MAX_ORIGIN = 32


class Edit:
    """A copy of a graph, with the number of uses of every value at hand.

    Attributes:
        graph: the copy; rules read it, and write to it by way of :meth:`add` only.
        training: whether gradients have to stay exact.
        precise: whether every bit has to stay.
    """

    def __init__(self, graph: Graph, *, training: bool = False, precise: bool = False) -> None:
        """Start from ``graph``, which is not written to. Linear."""
        self.graph = graph.copy()
        self.training = training
        self.precise = precise
        self.added: list[NodeId] = []
        self._uses: Counter[Value] = Counter(graph.outputs)
        self._names: Counter[str] = Counter()
        pinned: set[NodeId] = set()
        for node in graph.topological():
            self._uses.update(node.inputs)
            self._names[node.name] += 1
            if node.after or node.graphs:
                pinned.update((node.id, *node.after))
        self._pinned = frozenset(pinned)

    # -- reading ---------------------------------------------------------------------------

    def node(self, value: Value) -> Node:
        """The node that computes a value."""
        return self.graph[value.node]

    def type(self, value: Value) -> TensorType:
        """Type of a value."""
        return self.graph.type_of(value)

    def uses(self, value: Value) -> int:
        """How often a value is read, as a graph output too."""
        return self._uses[value]

    def is_movable(self, node: Node) -> bool:
        """Whether a rule may replace the node: nothing orders it and it nests no graph."""
        return node.id not in self._pinned and not node.is_input

    def producer(self, value: Value, ops: Iterable[str], *, only_user: bool = True) -> Node | None:
        """The node behind a value, if it is one of ``ops`` (canonical names) and has one output.

        Args:
            value: what is read.
            ops: which operators to accept.
            only_user: whether the value must be read once only, so that its node goes away.
        """
        node = self.node(value)
        if canonical(node.op) not in ops or len(node.types) != 1 or not self.is_movable(node):
            return None
        return node if not only_user or self._uses[value] == 1 else None

    # -- writing ---------------------------------------------------------------------------

    def add(
        self,
        op: str,
        inputs: Iterable[Value],
        attrs: Mapping[str, AttrValue] = EMPTY,
        type: TensorType | None = None,
        *,
        like: Node,
        name: str = "",
    ) -> Value:
        """Add an operator with one output.

        Args:
            op: the operator.
            inputs: what it reads.
            attrs: its attributes; those of MXNet's Python side (``__ctx_group__`` ...) come from
                ``like``.
            type: of its output; default: as ``like``.
            like: the node it stands in for.
            name: default: a new name made from that of ``like``.
        """
        merged = {key: value for key, value in like.attrs.items() if key.startswith("__")}
        merged.update(attrs)
        node = self.graph.add(
            op,
            inputs,
            merged,
            (like.type if type is None else type,),
            name or self._new_name(like.name),
            origin=like.origin,
        )
        self._uses.update(node.inputs)
        self._names[node.name] += 1
        self.added.append(node.id)
        return node.out()

    def replace(self, old: Value, new: Value) -> None:
        """Make every reader of ``old`` read ``new``."""
        self.graph.replace_uses(old, new)
        self._uses[new] += self._uses.pop(old, 0)

    def rename(self, node: NodeId, name: str, origin: tuple[str, ...] = ()) -> None:
        """Give a node another name and, beside its own, the origins in ``origin``."""
        old = self.graph[node]
        merged = tuple(dict.fromkeys((*old.origin, *origin)))[:MAX_ORIGIN]
        self.graph.update(old.but(name=name, origin=merged))
        self._names[name] += 1

    def erase_unused(self, nodes: Iterable[NodeId]) -> list[Node]:
        """Erase those of ``nodes`` that nothing reads, and what only they read; returns what went.

        Inputs, and operators that do more than compute a value, stay.
        """
        gone: list[Node] = []
        pending = [*nodes]
        while pending:
            name = pending.pop()
            if name not in self.graph or not self._is_erasable(self.graph[name]):
                continue
            node = self.graph[name]
            self.graph.erase(name)
            gone.append(node)
            for value in node.inputs:
                self._uses[value] -= 1
                pending.append(value.node)
        return gone

    def _is_erasable(self, node: Node) -> bool:
        if not self.is_movable(node) or any(self._uses[value] for value in node.values):
            return False
        return node.op == CONSTANT or info(node.op, node.attrs).is_pure(self.training)

    def _new_name(self, base: str) -> str:
        if not base or base not in self._names:
            return base
        # The count is a hint that spares a search through a_1, a_2 ... for every new name.
        number = self._names[base]
        while f"{base}_{number}" in self._names:
            number += 1
        self._names[base] = number
        return f"{base}_{number}"
