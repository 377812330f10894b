"""Digits that are lost, or meant to be, where a shift moves into a layer's bias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphopt.analysis.rounding import cancels
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Node, Value
from graphopt.ir.ops import canonical, info

if TYPE_CHECKING:
    from graphopt.passes.folding.affine import Affine

#: Pixels are numbers up to this, and lose two digits of seven at most.
_LARGEST_SHIFT: Final = 256.0
_SCALES: Final = frozenset({"_mul_scalar", "_div_scalar", "negative", "Cast"})
_SUMS: Final = {"_plus_scalar": (1, 1), "_minus_scalar": (1, -1), "_rminus_scalar": (-1, 1)}


def may_cancel(graph: Graph, affine: Affine) -> bool:
    """Whether a node may take nearly all of what the data are, of which nothing else is known.

    Its difference is exact where a layer's sums of what it took and what is left are not. What
    layers compute is as large as what a BatchNorm leaves of it, more or less.
    """
    if not affine.has_shift or (affine.is_number and abs(affine.number) <= _LARGEST_SHIFT):
        return False
    return _is_given(graph, affine.data)


def is_to_round(graph: Graph, node: Node) -> bool:
    """Whether a sum with a number has a neighbour that takes it back: ``(x + c) - c``."""
    if canonical(node.op) not in _SUMS:
        return False
    behind = [graph[use.node] for use in graph.users(node.out())]
    pairs = [(graph[node.inputs[0].node], node), *((node, reader) for reader in behind)]
    return any(_cancel(*pair) for pair in pairs)


def _cancel(first: Node, second: Node) -> bool:
    if canonical(first.op) not in _SUMS or canonical(second.op) not in _SUMS:
        return False
    (_, added), (sign, then) = _SUMS[canonical(first.op)], _SUMS[canonical(second.op)]
    one, other = (float(node.attrs.get("scalar", 1.0)) for node in (first, second))
    return cancels(sign * added * one, then * other)


def _is_given(graph: Graph, value: Value) -> bool:
    """Whether a value is data of the graph, of another shape or scale perhaps."""
    node = graph[value.node]
    while not node.is_input and len(node.inputs) == 1:
        if canonical(node.op) not in _SCALES and not info(node.op, node.attrs).view:
            return False
        node = graph[node.inputs[0].node]
    return node.op == DATA
