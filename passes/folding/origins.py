"""What a value that is known at compile time comes from, and so what it is for other shapes."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from graphopt.ir.constant import is_range
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node, NodeId, Value
from graphopt.ir.ops import Kind, canonical, info
from graphopt.ir.types import Shape
from graphopt.passes.folding.forms import FILLS

#: Operators that move elements, or repeat all of them, and let each be what it is.
_MOVES: Final = frozenset(
    {
        "SliceChannel",
        "SwapAxis",
        "_np_transpose",
        "_npi_broadcast_to",
        "broadcast_axis",
        "broadcast_like",
        "broadcast_to",
        "repeat",
        "slice",
        "slice_axis",
        "slice_like",
        "tile",
        "transpose",
    }
)
_JOINS: Final = frozenset({"Concat", "_npi_concatenate", "_npi_stack", "stack"})
#: Reductions that return a number which all elements are.
_TO_ONE_OF_THEM: Final = frozenset({"_np_max", "_np_min", "_npi_mean", "max", "mean", "min"})
#: Elementwise operators that read an extent, too.
_BY_EXTENT: Final = frozenset({"_contrib_div_sqrt_dim"})
_SUMS: Final = frozenset({"_npi_add", "broadcast_add", "elemwise_add"})
_PRODUCTS: Final = frozenset({"_npi_multiply", "broadcast_mul", "elemwise_mul"})
#: Dtypes that hold all numbers of places.
_WIDE: Final = frozenset({"float32", "float64", "int32", "int64"})
_NUMBERS: Final = {"_zeros": 0.0, "_ones": 1.0}


class Origin(enum.Enum):
    """What is known of a value for other shapes of data."""

    FIXED = "fixed"  # no shape was read
    FILL = "fill"  # one number everywhere, which goes by no shape
    PLACES = "places"  # 0, 1, 2 ..., moved perhaps
    SHAPES = "shapes"  # nothing, but for the same shapes


@dataclass(frozen=True)
class Known:
    """Where a value comes from.

    Attributes:
        origin: what it is for other shapes.
        shapes: those that it goes by.
        number: of a fill, where that is known without evaluating it.
    """

    origin: Origin
    shapes: frozenset[Shape] = frozenset()
    number: float | None = None


_FIXED: Final = Known(Origin.FIXED)
_FILL: Final = Known(Origin.FILL)
_PLACES: Final = Known(Origin.PLACES)


def origins(
    graph: Graph, constant: Collection[NodeId], by_shape: Mapping[str, tuple[int, ...]]
) -> dict[NodeId, Known]:
    """Where the values of these nodes come from.

    Args:
        graph: which has them.
        constant: nodes whose inputs are such, too, or are read for their shape alone.
        by_shape: positions of inputs of which an operator reads the shape alone.
    """
    found: dict[NodeId, Known] = {}
    for node in graph:
        if node.id in constant:
            found[node.id] = _origin(graph, node, found, by_shape.get(canonical(node.op), ()))
    return found


def _origin(
    graph: Graph, node: Node, found: Mapping[NodeId, Known], by_shape: tuple[int, ...]
) -> Known:
    op = canonical(node.op)
    known = _source(node, op)
    if known is not None:
        return known
    read = [value for at, value in enumerate(node.inputs) if at not in by_shape]
    inputs = [found[value.node] for value in read]
    if len(read) == len(node.inputs) and all(each.origin is Origin.FIXED for each in inputs):
        return _FIXED
    return _followed(node, op, inputs) or Known(Origin.SHAPES, _shapes(graph, node, found))


def _source(node: Node, op: str) -> Known | None:
    """Of a node that begins a value; ``None`` if it is none that is known."""
    if op in FILLS or op == "_npi_full_like":
        return Known(Origin.FILL, number=_number(node, op))
    if op == CONSTANT:
        return _PLACES if is_range(node) else _FIXED
    if op == "_contrib_arange_like" and node.type.dtype in _WIDE:
        settings = [float(node.attrs.get(key, by)) for key, by in _FROM_ZERO]
        return _PLACES if settings == [by for _, by in _FROM_ZERO] else None
    return None


def _number(node: Node, op: str) -> float | None:
    return float(node.attrs["value"]) if op == "_full" else _NUMBERS.get(FILLS.get(op, ""))


_FROM_ZERO: Final = (("start", 0.0), ("step", 1.0), ("repeat", 1.0))


def _followed(node: Node, op: str, inputs: list[Known]) -> Known | None:
    """Of an operator on such values; ``None`` if its result is something else."""
    if not inputs:
        return None
    first = inputs[0]
    kinds = {each.origin for each in inputs}
    if len(inputs) == 1 and (info(node.op, node.attrs).view or op in _MOVES):
        return None if first.origin in (Origin.FIXED, Origin.SHAPES) else first
    if kinds == {Origin.FILL}:
        return _of_fills(node, op, inputs)
    if kinds == {Origin.PLACES} and op == "Cast":
        return _PLACES if node.type.dtype in _WIDE else None
    neutral = 0.0 if op in _SUMS else 1.0 if op in _PRODUCTS else None
    others = [each.number for each in inputs if each.origin is Origin.FILL]
    if kinds == {Origin.PLACES, Origin.FILL} and neutral is not None and others == [neutral]:
        return _PLACES
    return None


def _of_fills(node: Node, op: str, fills: list[Known]) -> Known | None:
    """Of an operator on nothing but fills; ``None`` if its result may be none."""
    if op in _JOINS:
        numbers = {each.number for each in fills}
        return fills[0] if len(numbers) == 1 and None not in numbers else None
    if op in _TO_ONE_OF_THEM:
        return fills[0]
    by_element = info(node.op, node.attrs).kind in (Kind.ELEMENTWISE, Kind.BROADCAST)
    return _FILL if by_element and op not in _BY_EXTENT else None


def _shapes(graph: Graph, node: Node, found: Mapping[NodeId, Known]) -> frozenset[Shape]:
    """All that its value may go by."""
    shapes = frozenset[Shape]()
    for value in node.inputs:
        shapes |= _shapes_of(graph, value, found)
    return shapes


def _shapes_of(graph: Graph, value: Value, found: Mapping[NodeId, Known]) -> frozenset[Shape]:
    known, shape = found.get(value.node), graph.type_of(value).shape
    if known is not None and known.origin is Origin.SHAPES:
        return known.shapes
    is_fixed = known is not None and known.origin is Origin.FIXED
    return frozenset() if is_fixed or shape is None else frozenset({shape})
