"""Constants that are as long as an axis of the data, as positions along it are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.ir.constant import is_range, range_of
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.nn.sizes import Sizes


@dataclass(frozen=True)
class SizedRange:
    """The numbers from 0 on along one axis, as many as an axis of the data has."""

    name: str
    dtype: str
    axes: int
    axis: int
    source: int  # of the sizes

    def array(self, sizes: Sizes, ctx: Any) -> Any:
        """The NDArray for data of such sizes."""
        shape = [1] * self.axes
        shape[self.axis] = sizes[self.source]
        return import_mxnet().nd.array(range_of(shape, self.dtype), ctx=ctx, dtype=self.dtype)


def sized_ranges(
    first: Iterable[Graph], second: Iterable[Graph], a: Sizes, b: Sizes
) -> list[SizedRange] | None:
    """Those of graphs that are alike but for sizes; ``None`` if some are as long as no axis.

    Args:
        first: forms of a graph for data of sizes ``a``.
        second: the same forms for data of sizes ``b``.
        a: extents of all axes of the data.
        b: the same for the other graphs.
    """
    others = {node.name: node for node in _ranges(second)}
    sources = {pair: at for at, pair in reversed(list(enumerate(zip(a, b, strict=True))))}
    found = []
    for node in _ranges(first):
        other = others.get(node.name)
        mine, theirs = node.type.shape or (), (other and other.type.shape) or ()
        if mine == theirs:
            continue
        if len(mine) != len(theirs):
            return None
        axis = max(range(len(mine)), key=lambda at: mine[at] or 0)
        source = sources.get((mine[axis] or 0, theirs[axis] or 0))
        if source is None or node.type.size != mine[axis]:
            return None
        dtype = str(node.attrs["dtype"])
        found.append(SizedRange(node.name, dtype, len(mine), axis, source))
    return found


def _ranges(graphs: Iterable[Graph]) -> Iterator[Node]:
    for graph in graphs:
        for level in (graph, *(nested for node in graph for nested in node.graphs)):
            yield from filter(is_range, level)
