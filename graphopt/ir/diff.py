"""Structural difference of two graphs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from graphopt.ir.fingerprint import node_digests
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node


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
    that merely lies behind a change is not reported. Linear in both sizes.
    """
    left, right = _unmatched(before, after)
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
    return Diff(tuple(removed), tuple(added), tuple(changed))


def _unmatched(before: Graph, after: Graph) -> tuple[list[Node], list[Node]]:
    digests = node_digests(before), node_digests(after)
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
    reads = ", ".join(
        f"%{graph[value.node].name}" + (f"#{value.index}" if value.index else "")
        for value in node.inputs
    )
    attrs = f" {node.attrs.text}" if node.attrs else ""
    return f"%{node.name} = {node.op}({reads}){attrs} : {', '.join(map(str, node.types))}"
