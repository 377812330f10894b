"""Structural difference of two graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from graphopt.ir.fingerprint import node_digests
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value

_Digests = tuple[dict[NodeId, bytes], dict[NodeId, bytes]]


@dataclass(frozen=True)
class Diff:
    """What to take from one graph and add to it to get another."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[tuple[str, str], ...]

    @property
    def is_empty(self) -> bool:
        """Whether the graphs compute the same in the same way."""
        return not (self.removed or self.added or self.changed)

    def __str__(self) -> str:
        """Lines with ``-`` (only in the first), ``+`` (only in the second), ``~`` (changed)."""
        lines = [f"- {text}" for text in self.removed] + [f"+ {text}" for text in self.added]
        for before, after in self.changed:
            lines += [f"~ {before}", f"  {after}"]
        return "\n".join(lines)


def diff(before: Graph, after: Graph) -> Diff:
    """Compare two graphs by what their nodes compute, then by name.

    A node is common when its digest (operator, attributes and everything upstream) stands in both.
    What is left pairs by name: ``changed`` where operator, attributes or input names differ. A node
    that merely lies behind a change is not reported. Another order of inputs or other outputs are
    ``changed`` too. Linear in both sizes.
    """
    digests = node_digests(before), node_digests(after)
    left, right = _unmatched(before, after, digests)
    names_right = {node.name: node for node in right if node.name}
    removed, changed = [], []
    paired: set[str] = set()
    for node in left:
        other = names_right.get(node.name)
        if other is None:
            removed.append(_describe(before, node))
            continue
        paired.add(node.name)
        old, new = _describe(before, node), _describe(after, other)
        if old != new:
            changed.append((old, new))
    added = [_describe(after, n) for n in right if not n.name or n.name not in paired]
    changed += _signature(before, after, digests)
    return Diff(tuple(removed), tuple(added), tuple(changed))


def _signature(before: Graph, after: Graph, digests: _Digests) -> list[tuple[str, str]]:
    """What differs in the order of inputs and in what is returned, by name."""
    found = []
    orders = [", ".join(f"%{node.name}" for node in graph.inputs) for graph in (before, after)]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        found.append((f"inputs {orders[0]}", f"inputs {orders[1]}"))
    values = [
        [(own[value.node], value.index) for value in graph.outputs]
        for graph, own in zip((before, after), digests, strict=True)
    ]
    returned = [f"return {_read(graph, graph.outputs)}" for graph in (before, after)]
    if values[0] != values[1] and returned[0] != returned[1]:
        found.append((returned[0], returned[1]))
    return found


def _unmatched(before: Graph, after: Graph, digests: _Digests) -> tuple[list[Node], list[Node]]:
    counts = [Counter(d.values()) for d in digests]
    result = []
    for graph, own, other in ((before, digests[0], counts[1]), (after, digests[1], counts[0])):
        spare = Counter(other)
        rest = []
        for node in graph:
            if spare[own[node.id]] > 0:
                spare[own[node.id]] -= 1
            else:
                rest.append(node)
        result.append(rest)
    return result[0], result[1]


def _describe(graph: Graph, node: Node) -> str:
    """One line for a node; inputs by plain name, so that unrelated renumbering does not show."""
    if node.is_input:
        return f"{node.op} %{node.name}: {node.type}"
    reads = _read(graph, node.inputs)
    attrs = f" {node.attrs.text}" if node.attrs else ""
    return f"%{node.name} = {node.op}({reads}){attrs} : {', '.join(map(str, node.types))}"


def _read(graph: Graph, values: Iterable[Value]) -> str:
    return ", ".join(
        f"%{graph[value.node].name}" + (f"#{value.index}" if value.index else "")
        for value in values
    )
