"""Growing groups of nodes that can become one node each.

A group may become a node if that makes no cycle: nothing outside may lie on a path from one member
to another, directly or by way of other groups. So every merge is checked on the graph of groups, by
a search backwards that looks only at what lies between the two groups in topological order. Groups
are local in real graphs, which keeps the searches short; one that is not is given up.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.ir.graph import Graph
from graphopt.ir.node import NodeId

#: Groups a search visits before it gives up, which keeps the whole near-linear.
_PATIENCE = 500


class Groups:
    """A partition of a graph's nodes, one group per node at first, that stays free of cycles."""

    def __init__(self, graph: Graph) -> None:
        """Every node is alone."""
        order = graph.topological()
        self._parent: dict[NodeId, NodeId] = {node.id: node.id for node in order}
        self._first: dict[NodeId, int] = {node.id: at for at, node in enumerate(order)}
        self._last = dict(self._first)
        self._sources: dict[NodeId, set[NodeId]] = {
            node.id: {*(value.node for value in node.inputs), *node.after} for node in order
        }
        self._members: dict[NodeId, list[NodeId]] = {node.id: [node.id] for node in order}

    def find(self, node: NodeId) -> NodeId:
        """The group of a node; equal for nodes of one group."""
        root = node
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[node] != root:
            self._parent[node], node = root, self._parent[node]
        return root

    def members(self, group: NodeId) -> list[NodeId]:
        """Nodes of a group, in no particular order."""
        return self._members[self.find(group)]

    def sources(self, group: NodeId) -> Iterable[NodeId]:
        """Groups that a group reads from."""
        found = {self.find(source) for source in self._sources[group]} - {group}
        self._sources[group] = found
        return found

    def can_merge(self, a: NodeId, b: NodeId) -> bool:
        """Whether two groups can become one without making a cycle."""
        a, b = self.find(a), self.find(b)
        return a == b or not (self._detour(a, b) or self._detour(b, a))

    def merge(self, a: NodeId, b: NodeId) -> NodeId:
        """Make one group of two; returns it."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return a
        if len(self._members[a]) < len(self._members[b]):
            a, b = b, a
        self._parent[b] = a
        self._first[a] = min(self._first[a], self._first[b])
        self._last[a] = max(self._last[a], self._last[b])
        self._sources[a] |= self._sources.pop(b)
        self._members[a] += self._members.pop(b)
        return a

    def _detour(self, start: NodeId, end: NodeId) -> bool:
        """Whether a path leads from ``start`` through another group to ``end``, or perhaps so."""
        earliest = self._first[start]
        if self._last[end] < earliest:
            return False
        if len(self._sources[end]) > _PATIENCE:
            return True
        pending = [source for source in self.sources(end) if source != start]
        seen = set(pending)
        while pending:
            group = pending.pop()
            # Whatever depends on `start` has a member behind the first of `start`.
            if self._last[group] < earliest:
                continue
            for source in self.sources(group):
                if source == start or len(seen) > _PATIENCE:
                    return True
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        return False
