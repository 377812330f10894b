"""How a value that is known at compile time is written into a graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from graphopt.ir.attrs import Attrs
from graphopt.ir.constant import add_constant
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node
from graphopt.ir.ops import canonical

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Of 64-bit values ``_full`` holds integers up to this: MXNet reads its double from text, and the
#: last bits of others come out wrong.
_EXACT_INT: Final = 1 << 53

#: Operators that fill their output with one value, and the one that does so without an input.
FILLS: Final = {
    "_zeros": "_zeros",
    "_zeros_without_dtype": "_zeros",
    "_npi_zeros": "_zeros",
    "zeros_like": "_zeros",
    "_ones": "_ones",
    "_npi_ones": "_ones",
    "ones_like": "_ones",
    "_full": "_full",
}

#: Operators that return the extents of their input.
_EXTENTS: Final = frozenset({"shape_array", "size_array"})

#: Operator and attributes of a node without inputs.
Form = tuple[str, Attrs]


def is_known(node: Node) -> bool:
    """Whether a node's value follows from its attributes and types without evaluating it."""
    op = canonical(node.op)
    return op == CONSTANT or op in FILLS or op in _EXTENTS


def known_form(graph: Graph, node: Node) -> Form:
    """How to write down such a value."""
    import numpy as np

    op = canonical(node.op)
    if op == CONSTANT:
        return CONSTANT, node.attrs
    if op in _EXTENTS:
        source = graph.type_of(node.inputs[0])
        extents = source.shape if op == "shape_array" else (source.size,)
        return constant_form(np.array(extents, np.int64))
    # The types say more than the attributes, whose shape may be incomplete.
    attrs = Attrs(dtype=node.type.dtype, shape=node.type.shape)
    return FILLS[op], attrs.set(value=node.attrs["value"]) if op == "_full" else attrs


def constant_form(array: NDArray[Any]) -> Form:
    """A constant node that holds an array."""
    return CONSTANT, add_constant(Graph(), array).attrs


def fill_form(array: NDArray[Any]) -> Form | None:
    """The operator that makes an array of equal elements, if MXNet has one that is exact."""
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1)
    # By bytes, as NaN equals nothing and -0.0 equals 0.0.
    rows = flat.view(np.uint8).reshape(flat.size, -1)
    first = flat[0].item()
    is_negative_zero = first == 0 and math.copysign(1, first) < 0
    if (rows != rows[0]).any() or not math.isfinite(first) or is_negative_zero:
        return None
    if array.dtype.itemsize == 8 and (first != int(first) or abs(first) > _EXACT_INT):
        return None
    attrs = Attrs(dtype=str(array.dtype), shape=tuple(map(int, array.shape)))
    if first in (0, 1):
        return ("_ones" if first else "_zeros"), attrs
    return "_full", attrs.set(value=float(first))
