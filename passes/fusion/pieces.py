"""Cutting regions that read and write more than a kernel has operands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.passes.fusion.region import results


def pieces(graph: Graph, nodes: Sequence[Node], most: int) -> Iterator[Sequence[Node]]:
    """Parts of a region, one behind the other, each with ``most`` inputs and outputs at most.

    A part is a prefix of what is left in topological order, so none reads of a later one. Of the
    prefixes that fit and are at least half as long as the longest, it is the longest of those that
    hand on the fewest values: loops that were unrolled are cut between their steps.

    Args:
        graph: that the nodes belong to.
        nodes: the region in topological order, with less than ``most`` inputs each.
        most: operands of a kernel.
    """
    while nodes:
        cut = len(nodes) if _operands(graph, nodes) <= most else _cut(graph, nodes, most)
        yield nodes[:cut]
        nodes = nodes[cut:]


def _cut(graph: Graph, nodes: Sequence[Node], most: int) -> int:
    """How many nodes come into the first part. Quadratic in the region, which is bounded."""
    fitting = [n for n in range(1, len(nodes)) if _operands(graph, nodes[:n]) <= most]
    long = [n for n in fitting if 2 * n >= fitting[-1]]
    return min(long, key=lambda n: (_handed_on(nodes, n), -n))


def _handed_on(nodes: Sequence[Node], cut: int) -> int:
    """How many values of the nodes in front of a cut those behind it read."""
    before = {node.id for node in nodes[:cut]}
    return len({value for node in nodes[cut:] for value in node.inputs if value.node in before})


def _operands(graph: Graph, nodes: Sequence[Node]) -> int:
    inside = {node.id for node in nodes}
    read = {value for node in nodes for value in node.inputs if value.node not in inside}
    return len(read) + len(results(graph, nodes))
