"""Digits that are lost, or meant to be, where a shift moves into a layer's bias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphopt.analysis.rounding import cancels
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Node, NodeId, Value
from graphopt.ir.ops import canonical, info

if TYPE_CHECKING:
    from graphopt.passes.folding.affine import Affine

#: Pixels are numbers up to this, and lose two digits of seven at most.
_LARGEST_SHIFT: Final = 256.0
#: Operators that scale elements, or move them, besides views.
_MOVES: Final = frozenset(
    {
        "_mul_scalar",
        "_div_scalar",
        "negative",
        "Cast",
        "transpose",
        "SwapAxis",
        "slice",
        "slice_axis",
        "SliceChannel",
        "Concat",
        "Pad",
        "reverse",
        "stack",
        "Dropout",
    }
)
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
    """Whether a value is data of the graph, or made of such, in another order or scale perhaps."""
    seen: set[NodeId] = set()
    stack = [value.node]
    while stack:
        node = graph[stack.pop()]
        if node.op == DATA:
            return True
        moves = canonical(node.op) in _MOVES or info(node.op, node.attrs).view
        if moves and node.id not in seen:
            stack += [read.node for read in node.inputs]
        seen.add(node.id)
    return False
