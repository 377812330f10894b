"""Arithmetic of ``mx.np`` and activations of ``mx.npx`` on arrays of one floating dtype."""

from __future__ import annotations

from typing import Final

from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.passes.classic.types import FLOATS, are_classic, are_floats
from graphopt.rewrite import Edit, Rule
from graphopt.rewrite.rule import Replacement

_SAME: Final = """
    arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh degrees exp expm1 fix floor log
    log10 log1p log2 negative radians reciprocal rint sign sin sinh sqrt square tan tanh trunc
"""
_UNARY: Final = {
    **{f"_npi_{name}": name for name in _SAME.split()},
    "_npi_absolute": "abs",
    "_npx_relu": "relu",
    "_npx_sigmoid": "sigmoid",
    "_np_copy": "_copy",
}
_BINARY: Final = {
    "_npi_add": "broadcast_add",
    "_npi_subtract": "broadcast_sub",
    "_npi_multiply": "broadcast_mul",
    "_npi_true_divide": "broadcast_div",
    "_npi_mod": "broadcast_mod",
    "_npi_power": "broadcast_power",
    "_npi_hypot": "broadcast_hypot",
}
_SCALAR: Final = {
    "_npi_add_scalar": "_plus_scalar",
    "_npi_subtract_scalar": "_minus_scalar",
    "_npi_rsubtract_scalar": "_rminus_scalar",
    "_npi_multiply_scalar": "_mul_scalar",
    "_npi_true_divide_scalar": "_div_scalar",
    "_npi_rtrue_divide_scalar": "_rdiv_scalar",
    "_npi_mod_scalar": "_mod_scalar",
    "_npi_rmod_scalar": "_rmod_scalar",
    "_npi_power_scalar": "_power_scalar",
    "_npi_rpower_scalar": "_rpower_scalar",
}
_COMPARISONS: Final = {
    "_npi_equal": "broadcast_equal",
    "_npi_not_equal": "broadcast_not_equal",
    "_npi_greater": "broadcast_greater",
    "_npi_greater_equal": "broadcast_greater_equal",
    "_npi_less": "broadcast_lesser",
    "_npi_less_equal": "broadcast_lesser_equal",
    "_npi_equal_scalar": "_equal_scalar",
    "_npi_not_equal_scalar": "_not_equal_scalar",
    "_npi_greater_scalar": "_greater_scalar",
    "_npi_greater_equal_scalar": "_greater_equal_scalar",
    "_npi_less_scalar": "_lesser_scalar",
    "_npi_less_equal_scalar": "_lesser_equal_scalar",
}
_CONSTANTS: Final = {0: "zeros_like", 1: "ones_like"}


def _unary(edit: Edit, node: Node) -> Replacement:
    if not are_floats(edit, node):
        return None
    return edit.add(_UNARY[canonical(node.op)], node.inputs, like=node)


def _binary(edit: Edit, node: Node) -> Replacement:
    """A boolean that a number is multiplied by, or added to, becomes 0 or 1 of its dtype."""
    if node.type.dtype not in FLOATS or not are_classic(edit, node):
        return None
    inputs = [_as_number(edit, value) for value in node.inputs]
    if any(edit.type(value).dtype != node.type.dtype for value in inputs):
        return None
    return edit.add(_BINARY[canonical(node.op)], inputs, like=node)


def _scalar(edit: Edit, node: Node) -> Replacement:
    number = node.attrs.get("scalar")
    if not are_floats(edit, node) or not isinstance(number, (int, float)):
        return None
    # On floats is_int changes nothing, and rules for mx.nd's operators know nothing of it.
    return edit.add(_SCALAR[canonical(node.op)], node.inputs, {"scalar": number}, like=node)


def _where(edit: Edit, node: Node) -> Replacement:
    """``mx.nd``'s where does not broadcast, and gives gradients to what was chosen as np's does."""
    if node.type.dtype not in FLOATS or not are_classic(edit, node):
        return None
    condition, *chosen = node.inputs
    if any(edit.type(value) != node.type for value in chosen):
        return None
    number = _as_number(edit, condition)
    if edit.type(number) != node.type:
        return None
    return edit.add("where", (number, *chosen), like=node)


def _cast(edit: Edit, node: Node) -> Replacement:
    """A boolean made a float by a cast is compared as a float from the start."""
    number = _as_number(edit, node.inputs[0])
    if number == node.inputs[0] or node.type.dtype not in FLOATS:
        return None
    if edit.type(number).dtype == node.type.dtype:
        return number
    return edit.add(node.op, (number,), node.attrs, like=node)


def _full_like(edit: Edit, node: Node) -> Replacement:
    number = node.attrs.get("fill_value")
    if number not in _CONSTANTS or not are_floats(edit, node):
        return None
    return edit.add(_CONSTANTS[number], node.inputs, like=node)


def _as_number(edit: Edit, value: Value) -> Value:
    """A comparison of floats as 0 or 1 in their dtype; any other value as it is.

    The boolean stays for those that read it as one, and is dead without them.
    """
    node = edit.producer(value, _COMPARISONS, only_user=False)
    if node is None or not are_classic(edit, node):
        return value
    read = {edit.type(v).dtype for v in node.inputs}
    if len(read) != 1 or not read <= FLOATS:
        return value
    attrs = {k: v for k, v in node.attrs.items() if k == "scalar"}
    if any(not isinstance(number, (int, float)) for number in attrs.values()):
        return value
    type_ = edit.type(node.inputs[0]).with_shape(node.type.shape)
    return edit.add(_COMPARISONS[canonical(node.op)], node.inputs, attrs, type_, like=node)


RULES = (
    Rule("pointwise", tuple(_UNARY), _unary),
    Rule("pointwise", tuple(_BINARY), _binary),
    Rule("pointwise", tuple(_SCALAR), _scalar),
    Rule("pointwise", ("_npi_full_like",), _full_like),
    Rule("comparison", ("_npi_where",), _where),
    Rule("comparison", ("Cast",), _cast),
)
