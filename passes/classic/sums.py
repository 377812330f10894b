"""Reductions and products of ``mx.np``."""

from __future__ import annotations

import math
from typing import Final

from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import Shape
from graphopt.passes.classic.types import are_floats
from graphopt.passes.layout.views import as_ints
from graphopt.rewrite import Edit, Rule
from graphopt.rewrite.rule import Replacement

_REDUCTIONS: Final = {
    "_np_sum": "sum",
    "_npi_mean": "mean",
    "_np_max": "max",
    "_np_min": "min",
    "_np_prod": "prod",
}
#: Axes of stacks of matrices that Reshape joins, and splits again, whatever their sizes are.
_JOINED: Final = 4


def _reduction(edit: Edit, node: Node) -> Replacement:
    """Over stated axes only: over all of them the result has no axes in ``mx.np``."""
    axes = as_ints(node.attrs.get("axis"))
    if not axes or not are_floats(edit, node):
        return None
    if any(node.attrs.get(key) is not None for key in ("dtype", "initial")):
        return None
    attrs = {"axis": axes, "keepdims": node.attrs.flag("keepdims")}
    return edit.add(_REDUCTIONS[canonical(node.op)], node.inputs, attrs, like=node)


def _product(edit: Edit, node: Node) -> Replacement:
    """A matrix on the right makes a ``dot``, two stacks of matrices of one length a ``batch_dot``.

    ``mx.nd.dot`` takes the right operand's first axis where numpy's takes its last but one.
    """
    if not are_floats(edit, node):
        return None
    left, right = (edit.type(value).shape or () for value in node.inputs)
    if len(left) >= 2 and len(right) == 2:
        return edit.add("dot", node.inputs, like=node)
    if canonical(node.op) != "_npi_matmul" or len(left) < 3 or left[:-2] != right[:-2]:
        return None
    if len(left) == 3:
        return edit.add("batch_dot", node.inputs, like=node)
    flat = [
        _stacked(edit, value, shape)
        for value, shape in zip(node.inputs, (left, right), strict=True)
    ]
    count = edit.type(flat[0]).shape or ()
    type_ = node.type.with_shape((count[0], left[-2], right[-1]))
    product = edit.add("batch_dot", flat, type=type_, like=node)
    # Batch, rows and columns may be others in a later call.
    codes = (-4, -1, left[1], -2) if len(left) == _JOINED else node.type.shape
    return edit.add("Reshape", (product,), {"shape": codes}, like=node)


def _stacked(edit: Edit, value: Value, shape: Shape) -> Value:
    """All axes but the last two joined to one."""
    count = math.prod(extent or 1 for extent in shape[:-2])
    type_ = edit.type(value).with_shape((count, *shape[-2:]))
    codes = (-3, -2) if len(shape) == _JOINED else (-1, *shape[-2:])
    return edit.add("Reshape", (value,), {"shape": codes}, type_, like=edit.node(value))


RULES = (
    Rule("reduction", tuple(_REDUCTIONS), _reduction),
    Rule("product", ("_np_dot", "_npi_matmul"), _product),
)
