"""The graph: frozen nodes, one mutation API, and derived views.

``Node.inputs`` is the only truth about edges. Users, topological order and the networkx view are
derived from it, cached, and dropped on mutation. ``copy()`` shares everything until the first
write, so a pass that changes nothing costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from graphopt.errors import GraphError
from graphopt.ir.attrs import EMPTY, Attrs, AttrValue
from graphopt.ir.node import ROLES, Node, NodeId, Use, Value
from graphopt.ir.types import UNKNOWN, TensorType

if TYPE_CHECKING:
    import networkx as nx

T = TypeVar("T")
_State = tuple[dict[NodeId, Node], list[NodeId], list[Value], NodeId]


class Graph:
    """A dataflow graph with ordered inputs and outputs.

    Iteration yields nodes in topological order: depth first from the outputs, as MXNet's own
    executor visits them, then whatever no output needs. The order depends on the structure only.
    """

    def __init__(self, name: str = "graph") -> None:
        """Make an empty graph."""
        self.name = name
        self._nodes: dict[NodeId, Node] = {}
        self._inputs: list[NodeId] = []
        self._outputs: list[Value] = []
        self._next: NodeId = 0
        self._shared = False
        self._users: dict[NodeId, dict[Use, int]] | None = None
        self._order: tuple[Node, ...] | None = None
        self._names: dict[str, int] | None = None
        self._derived: dict[str, Any] | None = None

    # -- reading ---------------------------------------------------------------------------

    def __getitem__(self, node: NodeId) -> Node:
        """The node with this id.

        Raises:
            GraphError: there is none.
        """
        try:
            return self._nodes[node]
        except KeyError:
            raise GraphError(f"graph {self.name!r} has no node {node}") from None

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    def holds(self, node: Node) -> bool:
        """Whether this very node, not another one of its id, is a part of the graph."""
        return self._nodes.get(node.id) is node

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.topological())

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes (data, parameters, auxiliary states) in signature order."""
        return tuple(self._nodes[node] for node in self._inputs)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values the graph returns, in order."""
        return tuple(self._outputs)

    def is_unchanged_from(self, other: Graph) -> bool:
        """Whether this is ``other``, or a copy of it that nothing was written to since."""
        return self._nodes is other._nodes and self._outputs is other._outputs

    def role(self, role: str) -> tuple[Node, ...]:
        """Input nodes of one role: ``data``, ``param`` or ``aux``."""
        return tuple(node for node in self.inputs if node.op == role)

    def type_of(self, value: Value) -> TensorType:
        """Type of a value."""
        return self[value.node].types[value.index]

    def users(self, value: Value) -> tuple[Use, ...]:
        """Where a value is read, in the order the reads were made (outputs not included)."""
        uses = self._use_index().get(value.node)
        return () if uses is None else tuple(u for u, index in uses.items() if index == value.index)

    def node_users(self, node: NodeId) -> tuple[Use, ...]:
        """Where any output of a node is read."""
        return tuple(self._use_index().get(node, ()))

    def is_output(self, value: Value) -> bool:
        """Whether the graph returns this value."""
        return value in self._outputs

    def find_input(self, name: str) -> Node:
        """The input of that name.

        Raises:
            GraphError: there is none.
        """
        for node in self._inputs:
            if self._nodes[node].name == name:
                return self._nodes[node]
        raise GraphError(f"graph {self.name!r} has no input named {name!r}")

    def find(self, name: str) -> Node:
        """The first node of that name, in topological order.

        Raises:
            GraphError: there is none; close matches are suggested.
        """
        for node in self:
            if node.name == name:
                return node
        import difflib

        near = difflib.get_close_matches(name, [node.name for node in self], n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise GraphError(f"graph {self.name!r} has no node named {name!r}{hint}")

    def topological(self) -> tuple[Node, ...]:
        """All nodes, producers first.

        Raises:
            GraphError: the graph has a cycle (which is named) or reads a value that is not there.
        """
        if self._order is None:
            self._order = _depth_first(self)
        return self._order

    def derived(self, name: str, make: Callable[[Graph], T]) -> T:
        """What ``make`` finds in this graph, kept under ``name`` until the graph is written to.

        Copies share it until then. It has to depend on nothing but the graph.
        """
        if self._derived is None:
            self._derived = {}
        if name not in self._derived:
            self._derived[name] = make(self)
        found: T = self._derived[name]
        return found

    @property
    def nx(self) -> nx.MultiDiGraph:
        """A networkx view for algorithms: ids as nodes, one edge per read, keyed by position.

        Control dependencies are edges with the key ``"after"``. A fresh object: changing it does
        not change the graph.
        """
        import networkx as nx

        view = nx.MultiDiGraph(name=self.name)
        for node in self:
            view.add_node(node.id, node=node)
        for node in self:
            for position, value in enumerate(node.inputs):
                view.add_edge(value.node, node.id, key=position, index=value.index)
            for before in node.after:
                view.add_edge(before, node.id, key="after")
        return view

    def __eq__(self, other: object) -> bool:
        """Equal when they print the same: structure, names, attributes and types; not ids."""
        return str(self) == str(other) if isinstance(other, Graph) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        from graphopt.ir.printer import print_graph

        return print_graph(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self)} nodes, {len(self._outputs)} outputs>"

    # -- writing ---------------------------------------------------------------------------

    def add_input(
        self,
        name: str,
        role: str = "data",
        type: TensorType = UNKNOWN,
        attrs: Mapping[str, AttrValue] = EMPTY,
    ) -> Node:
        """Append an input.

        Raises:
            GraphError: the role is none of data, param, aux.
        """
        if role not in ROLES:
            raise GraphError(f"{role!r} is no input role; use one of {', '.join(ROLES)}")
        node = self.add(role, (), attrs, (type,), name)
        self._inputs.append(node.id)
        return node

    def add(
        self,
        op: str,
        inputs: Iterable[Value | Node],
        attrs: Mapping[str, AttrValue] = EMPTY,
        types: Sequence[TensorType] = (UNKNOWN,),
        name: str = "",
        *,
        graphs: Sequence[Graph] = (),
        after: Sequence[NodeId] = (),
        origin: Sequence[str] = (),
    ) -> Node:
        """Add an operator; inputs may be values or nodes (their first output). Returns the node."""
        self._own()
        node = Node(
            self._next,
            op,
            tuple(i.out() if isinstance(i, Node) else i for i in inputs),
            attrs if isinstance(attrs, Attrs) else Attrs(attrs),
            tuple(types),
            name,
            tuple(graphs),
            tuple(after),
            tuple(origin),
        )
        self._next += 1
        self._nodes[node.id] = node
        if self._users is not None:
            self._count_uses(node, self._users)
        if self._names is not None:
            self._names[name] = self._names.get(name, 0) + 1
        return node

    def update(self, node: Node) -> Node:
        """Replace the node of the same id by ``node``."""
        old = self[node.id]
        self._own()
        self._nodes[node.id] = node
        if self._users is not None and old.inputs != node.inputs:
            self._change_uses(old, node, self._users)
        if old.name != node.name:
            self._forget_name(old.name)
            if self._names is not None:
                self._names[node.name] = self._names.get(node.name, 0) + 1
        return node

    def replace_uses(self, old: Value, new: Value) -> int:
        """Make every reader of ``old`` (outputs too) read ``new``; returns how many changed."""
        return self.replace_all({old: new})

    def replace_all(self, new: Mapping[Value, Value]) -> int:
        """:meth:`replace_uses` of many values at once: a node that reads some changes once."""
        uses = [use for old in new for use in self.users(old)]
        for reader in dict.fromkeys(use.node for use in uses):
            node = self._nodes[reader]
            self.update(node.but(inputs=tuple(new.get(value, value) for value in node.inputs)))
        returned = sum(value in new for value in self._outputs)
        if returned:
            self._own()
            self._outputs = [new.get(value, value) for value in self._outputs]
        return len(uses) + returned

    def erase(self, node: NodeId) -> None:
        """Remove a node that nothing reads.

        Raises:
            GraphError: something still reads it.
        """
        gone = self[node]
        if self._use_index().get(node) or any(value.node == node for value in self._outputs):
            raise GraphError(f"node {gone.name!r} of graph {self.name!r} is still in use")
        self._own()
        users = self._use_index()
        for position, value in enumerate(gone.inputs):
            users[value.node].pop(Use(node, position), None)
        users.pop(node, None)
        del self._nodes[node]
        if gone.is_input:
            self._inputs.remove(node)
        self._order = None  # counting the uses has made it anew, with the node
        self._forget_name(gone.name)

    def set_outputs(self, outputs: Iterable[Value | Node]) -> None:
        """Choose what the graph returns."""
        self._own()
        self._outputs = [o.out() if isinstance(o, Node) else o for o in outputs]

    def unique_name(self, base: str) -> str:
        """``base``, or ``base_1``, ``base_2`` ... if a node has that name already."""
        if self._names is None:
            self._names = {}
            for node in self._nodes.values():
                self._names[node.name] = self._names.get(node.name, 0) + 1
        name, count = base, 0
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        return name

    def copy(self, name: str | None = None) -> Graph:
        """A copy that shares its nodes until either is written to; ids stay the same."""
        twin = Graph(self.name if name is None else name)
        twin._nodes, twin._inputs, twin._outputs = self._nodes, self._inputs, self._outputs
        if self._derived is None:
            self._derived = {}  # for both
        twin._next, twin._order, twin._users = self._next, self._order, self._users
        twin._derived = self._derived
        twin._shared = self._shared = True
        return twin

    @contextmanager
    def edit(self) -> Iterator[Graph]:
        """Edit as a transaction: an exception inside leaves the graph as it was."""
        before: _State = (self._nodes, self._inputs, self._outputs, self._next)
        self._shared = True
        try:
            yield self
        except BaseException:
            self._nodes, self._inputs, self._outputs, self._next = before
            self._shared = True  # with any copy made inside
            self._users = self._order = self._names = self._derived = None
            raise

    def _own(self) -> None:
        """Stop sharing before a write, and drop what the write makes stale."""
        self._order = self._derived = None
        if self._shared:
            self._nodes = dict(self._nodes)
            self._inputs = list(self._inputs)
            self._outputs = list(self._outputs)
            self._users = self._names = None
            self._shared = False

    def _forget_name(self, name: str) -> None:
        if self._names is not None and name in self._names:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    def _use_index(self) -> dict[NodeId, dict[Use, int]]:
        if self._users is None:
            self._users = {}
            for node in self.topological():
                self._count_uses(node, self._users)
        return self._users

    @staticmethod
    def _count_uses(node: Node, users: dict[NodeId, dict[Use, int]]) -> None:
        for position, value in enumerate(node.inputs):
            users.setdefault(value.node, {})[Use(node.id, position)] = value.index

    @staticmethod
    def _change_uses(old: Node, node: Node, users: dict[NodeId, dict[Use, int]]) -> None:
        """Count those of a node instead of those that it had; a region may have hundreds."""
        for position, (was, now) in enumerate(zip_longest(old.inputs, node.inputs)):
            if was == now:
                continue
            if was is not None:
                users[was.node].pop(Use(node.id, position), None)
            if now is not None:
                users.setdefault(now.node, {})[Use(node.id, position)] = now.index

    def __getstate__(self) -> tuple[str, _State]:
        return self.name, (self._nodes, self._inputs, self._outputs, self._next)

    def __setstate__(self, state: tuple[str, _State]) -> None:
        name, parts = state
        self.__init__(name)  # type: ignore[misc]
        self._nodes, self._inputs, self._outputs, self._next = parts

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self.copy()


def _depth_first(graph: Graph) -> tuple[Node, ...]:
    """Post-order from the outputs, then from the remaining nodes by id; explicit stack."""
    nodes = graph._nodes
    order: list[Node] = []
    done: set[NodeId] = set()
    on_path: dict[NodeId, None] = {}
    roots = [value.node for value in graph._outputs]
    for root in (*roots, *nodes):
        if root in done:
            continue
        stack = [(graph[root], _reads(graph[root]))]
        on_path[root] = None
        while stack:
            node, pending = stack[-1]
            for source in pending:
                if source in done:
                    continue
                if source in on_path:
                    raise GraphError(_cycle_message(graph, [*on_path], source))
                if source not in nodes:
                    raise GraphError(
                        f"node {node.name!r} ({node.op}) reads node {source}, which is not there"
                    )
                stack.append((nodes[source], _reads(nodes[source])))
                on_path[source] = None
                break
            else:
                stack.pop()
                del on_path[node.id]
                done.add(node.id)
                order.append(node)
    return tuple(order)


def _reads(node: Node) -> Iterator[NodeId]:
    for value in node.inputs:
        yield value.node
    yield from node.after


def _cycle_message(graph: Graph, path: list[NodeId], again: NodeId) -> str:
    cycle = [graph[node].name or str(node) for node in path[path.index(again) :]]
    shown = cycle if len(cycle) <= 6 else [*cycle[:3], "...", *cycle[-2:]]
    return f"graph {graph.name!r} has a cycle: {' <- '.join([*shown, shown[0]])}"
