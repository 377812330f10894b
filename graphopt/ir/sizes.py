"""Extents of a graph's data, what two of them say of a third, and constants that follow them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from graphopt.ir.constant import is_range, range_of
from graphopt.ir.graph import Graph
from graphopt.ir.node import BY_ATTRIBUTES, Node

if TYPE_CHECKING:
    import numpy as np

#: The extents of all axes of all arrays.
Sizes = tuple[int, ...]

#: The shapes of arrays, by name.
Shapes = dict[str, tuple[int, ...]]

#: Sizes are far from each other if an extent is more than so many times as large.
_FAR: Final = 2.0
#: Operators without inputs that fill a shape with one number, and the number.
FILLS: Final[Mapping[str, float | None]] = {"_zeros": 0.0, "_ones": 1.0, "_full": None}


def covers(first: Sizes, second: Sizes, new: Sizes) -> bool:
    """Whether graphs that are alike for two sizes are so for a third one, as far as sizes tell.

    Extents that the two have in common have to be that; those that are equal in each of the two
    have to be equal, as it may matter that they are. What is 1 in neither may not be, since MXNet
    broadcasts along that.
    """
    found: dict[tuple[int, int], int] = {}
    for a, b, extent in zip(first, second, new, strict=True):
        if extent < 1 or (extent == 1 and 1 not in (a, b)):
            return False
        if found.setdefault((a, b), a if a == b else extent) != extent:
            return False
    return True


def distance(first: Sizes, second: Sizes) -> float:
    """The largest factor between two extents; infinite if one of them is 0."""
    pairs = [sorted(pair) for pair in zip(first, second, strict=True)]
    return max((large / small if small else math.inf for small, large in pairs), default=1.0)


def are_near(first: Sizes, second: Sizes) -> bool:
    """Whether what is fast for one will be for the other."""
    return distance(first, second) <= _FAR


@dataclass(frozen=True)
class SizedConstant:
    """A constant of which axes are as long as some of the data."""

    name: str
    dtype: str
    extents: tuple[int, ...]
    sources: tuple[int | None, ...]  # for each axis the number of an extent of the data
    value: float | None  # everywhere; None: it holds 0, 1, 2 ...

    def array(self, sizes: Sizes) -> np.ndarray[Any, Any]:
        """The constant for data of such sizes."""
        import numpy as np

        pairs = zip(self.extents, self.sources, strict=True)
        shape = [own if source is None else sizes[source] for own, source in pairs]
        if self.value is None:
            return range_of(shape, self.dtype)
        return np.full(shape, self.value, self.dtype)


@dataclass(frozen=True)
class Sized:
    """What a graph has to be given besides its data to run at another size."""

    constants: tuple[SizedConstant, ...] = ()
    computed: frozenset[str] = frozenset()  # inputs made of parameters and these constants


def is_sized(node: Node) -> bool:
    """Whether it is a constant whose shape may follow that of the data."""
    return is_range(node) or (node.op in FILLS and not node.inputs)


def sized_of(first: Iterable[Graph], second: Iterable[Graph], a: Sizes, b: Sizes) -> Sized | None:
    """What graphs that are alike but for sizes need; ``None`` if it follows from no extent.

    Args:
        first: forms of a graph for data of sizes ``a``.
        second: the same forms for data of sizes ``b``.
        a: extents of all axes of the data.
        b: the same for the other graphs.
    """
    first, second = list(first), list(second)
    sources = {pair: at for at, pair in reversed(list(enumerate(zip(a, b, strict=True))))}
    others = {node.name: node for node in _constants(second)}
    found: dict[str, SizedConstant] = {}
    for node in _constants(first):
        other = others.get(node.name)
        if other is not None and _shape(other) == _shape(node):
            continue
        made = None if other is None else _sized(node, other, sources)
        if made is None:
            return None
        found[node.name] = made
    computed = frozenset(_other_inputs(first, second))
    return Sized(tuple(found.values()), computed) if found or not computed else None


def _constants(graphs: Iterable[Graph]) -> Iterator[Node]:
    for graph in graphs:
        nested = [n for node in graph if node.op not in BY_ATTRIBUTES for n in node.graphs]
        for level in (graph, *nested):
            yield from filter(is_sized, level)


def _sized(node: Node, other: Node, sources: Mapping[tuple[int, int], int]) -> SizedConstant | None:
    mine, theirs = _shape(node), _shape(other)
    if len(mine) != len(theirs):
        return None
    pairs = list(zip(mine, theirs, strict=True))
    if any(x != y and (x, y) not in sources for x, y in pairs):
        return None
    ranges = is_range(node)
    if ranges and max(mine) != math.prod(mine):
        return None  # of several axes, each of which could be the one
    value = None if ranges else FILLS[node.op]
    return SizedConstant(
        node.name,
        str(node.attrs.get("dtype") or node.type.dtype or "float32"),
        mine,
        tuple(None if x == y else sources[x, y] for x, y in pairs),
        float(node.attrs["value"]) if value is None and not ranges else value,
    )


def _shape(node: Node) -> tuple[int, ...]:
    shape: Any = node.attrs["shape"]
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _other_inputs(first: Iterable[Graph], second: Iterable[Graph]) -> Iterator[str]:
    """Inputs besides the data that have another shape in the other graphs."""
    for graph, other in zip(first, second, strict=True):
        types = {node.name: node.type for node in other.inputs}
        data = graph.role("data")
        yield from (n.name for n in graph.inputs if n not in data and types.get(n.name) != n.type)
