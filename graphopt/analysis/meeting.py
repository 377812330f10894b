"""Extents that meet in graphs for data of some sizes, and not in that for far larger data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.ops import Kind, canonical, info

#: What passes look for an extent of 1 at.
_BY_ONES: Final = frozenset({Kind.REDUCTION, Kind.BROADCAST})
_MOVES: Final = frozenset({"SwapAxis", "_np_squeeze", "_np_transpose", "squeeze", "transpose"})


def meet_nearby(graph: Graph, longer: Graph, far: Graph) -> bool:
    """Whether what passes may go by holds for two sizes, but not for a third one.

    That is, whether an operator returns the shape that it is given, as slices do that take all, and
    pooling to as many windows as there are elements, and whether an extent is 1 that is summed up,
    moved, or broadcast along.

    Args:
        graph: typed for data of one size.
        longer: the same graph for data that are a little longer.
        far: the same for data that are longer than any number in it, as far as one can tell.
    """
    here, nearby, there = ([*_facts(each)] for each in (graph, longer, far))
    if not len(here) == len(nearby) == len(there):  # they have other ranks
        return True
    return any(a and b and not c for a, b, c in zip(here, nearby, there, strict=True))


def _facts(graph: Graph) -> Iterator[bool]:
    for node in graph:
        types = [graph.type_of(value) for value in node.inputs]
        if types:
            yield types[0].shape == node.types[0].shape
        if info(node.op, node.attrs).kind in _BY_ONES or canonical(node.op) in _MOVES:
            for type_ in types:
                yield from (extent == 1 for extent in type_.shape or ())
