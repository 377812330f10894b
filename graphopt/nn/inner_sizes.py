"""Extents of all that a net computes on the way from its data to its results.

Passes go by extents wherever they meet: a slice that takes all there is of two sizes may cut a
third one short, pooling to 4 by 4 has nothing to do where there are as many. They count elements,
too, of which 4 by 6 and 6 by 4 have as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Final

from graphopt.compat import import_mxnet
from graphopt.ir.node import DATA
from graphopt.ir.sizes import Sizes

if TYPE_CHECKING:
    from graphopt.frontend.gluon import Traced
    from graphopt.ir.graph import Graph

#: The shapes of a call's arrays.
Given = tuple[tuple[int, ...], ...]
#: Those of which the extents are kept: the net's own, and the last others.
_KEPT: Final = 4


class InnerSizes:
    """What MXNet infers for the user's Symbol, which takes about a millisecond."""

    def __init__(self, traced: Traced, graph: Graph) -> None:
        """Of a net, and its graph with the shapes of parameters."""
        self._internals = traced.symbol.get_internals()
        read = {*traced.symbol.list_inputs()}
        self._names = [name if name in read else None for name in traced.names]
        self._fixed = {
            node.name: tuple(extent or 0 for extent in node.type.shape or ())
            for node in graph.inputs
            if node.op != DATA and node.name in read
        }
        self._last: dict[Given, Sizes | None] = {}

    def of(self, given: Given) -> Sizes | None:
        """Extents and products of these for data of such shapes, each at the same place for any.

        ``None`` where MXNet cannot infer them.
        """
        last = dict(self._last)  # threads that ask for others keep theirs meanwhile
        found = last.pop(given) if given in last else self._inferred(given)
        self._last = dict([*last.items(), (given, found)][-_KEPT:])
        return found

    def _inferred(self, given: Given) -> Sizes | None:
        shapes = {n: s for n, s in zip(self._names, given, strict=True) if n is not None}
        try:
            _, found, _ = self._internals.infer_shape_partial(**self._fixed, **shapes)
        except import_mxnet().MXNetError:
            return None
        return None if found is None else tuple(_known(found))


def _known(shapes: Iterable[Sequence[int] | None]) -> Iterator[int]:
    """Of shapes that are known before they are computed."""
    for shape in shapes:
        if shape and min(shape) > 0:
            yield from shape
            yield from accumulate(reversed(shape), mul)
