"""Extents that meet in graphs for data of some sizes, and not in that for far larger data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId
from graphopt.ir.ops import Kind, canonical, info
from graphopt.ir.types import Shape

#: What passes look for an extent of 1 at.
_BY_ONES: Final = frozenset({Kind.REDUCTION, Kind.BROADCAST})
_MOVES: Final = frozenset({"SwapAxis", "_np_squeeze", "_np_transpose", "squeeze", "transpose"})

#: Those of one value in each of the graphs.
_Shapes = tuple[Shape | None, ...]


def meet_nearby(graph: Graph, longer: Graph, far: Graph) -> bool:
    """Whether what passes may go by holds for two sizes, but not for a third one.

    That is, whether an operator returns a shape that something has of which it is computed, as
    slices do that take all, parts that are joined again, and pooling to as many windows as there
    are elements, and whether an extent is 1 that is summed up, moved, or broadcast along.

    Args:
        graph: typed for data of one size.
        longer: the same graph for data that are a little longer.
        far: the same for data that are longer than any number in it, as far as one can tell.
    """
    here, nearby, there = ([*_ones(each)] for each in (graph, longer, far))
    if not len(here) == len(nearby) == len(there):  # they have other ranks
        return True
    if any(a and b and not c for a, b, c in zip(here, nearby, there, strict=True)):
        return True
    return _shapes_meet(graph, longer, far)


def meet_here(graph: Graph, other: Graph) -> bool:
    """Whether an operator returns the shape of something it reads, but not in the other graph.

    That is where passes may take a broadcast for an elementwise operator, or for nothing at all.

    Args:
        graph: typed for data of one size.
        other: the same graph for data that have other extents.
    """
    return any(
        mine == graph.type_of(value).shape and theirs != other.type_of(twin).shape
        for node, beside in zip(graph, other, strict=True)
        for value, twin in zip(node.inputs, beside.inputs, strict=True)
        for mine, theirs in zip(_shapes_of(node), _shapes_of(beside), strict=True)
    )


def _shapes_of(node: Node) -> Iterator[Shape | None]:
    return (type_.shape for type_ in node.types)


def _ones(graph: Graph) -> Iterator[bool]:
    """For all extents at which passes look for a 1, whether it is that."""
    for node in graph:
        if info(node.op, node.attrs).kind in _BY_ONES or canonical(node.op) in _MOVES:
            for value in node.inputs:
                yield from (extent == 1 for extent in graph.type_of(value).shape or ())


def _shapes_meet(graph: Graph, longer: Graph, far: Graph) -> bool:
    """Whether a shape is that of something before it, but not in the last graph."""
    before: dict[NodeId, frozenset[_Shapes]] = {}
    for nodes in zip(graph, longer, far, strict=True):
        own = {*zip(*([type_.shape for type_ in node.types] for node in nodes), strict=True)}
        known = frozenset[_Shapes]().union(*(before[value.node] for value in nodes[0].inputs))
        nearby = {each[:2] for each in known}
        if any(each[:2] in nearby for each in own - known):
            return True
        before[nodes[0].id] = known | own
    return False
