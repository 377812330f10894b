"""Operators that only rename the shape: Reshape, Flatten, expand_dims, squeeze, reshape_like."""

from __future__ import annotations

import math
from typing import cast

from graphopt.ir.attrs import AttrValue
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.reshape import codes_for, reshaped
from graphopt.ir.types import TensorType
from graphopt.rewrite import Edit, Rule
from graphopt.rewrite.rule import Replacement

VIEWS = ("Reshape", "Flatten", "expand_dims", "squeeze", "reshape_like")


def static_shape(type_: TensorType) -> tuple[int, ...] | None:
    """The shape, if every extent is known and none is 0 (which Reshape takes for "copy")."""
    if type_.shape is None or not all(type_.shape):
        return None
    return cast("tuple[int, ...]", type_.shape)


def as_ints(value: AttrValue) -> tuple[int, ...]:
    """A shape or axes attribute; a single number and none at all are allowed."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def view(edit: Edit, source: Value, shape: tuple[int, ...], like: Node) -> Value:
    """``source`` in another static shape, by as generic an operator as the shape allows.

    Codes that ``like`` has already are kept if they mean the same on ``source``.
    """
    before = static_shape(edit.type(source))
    assert before is not None
    assert math.prod(before) == math.prod(shape)
    if before == shape:
        return source
    type_ = like.type.with_shape(shape)
    if canonical(like.op) == "Flatten" and shape == (before[0], math.prod(before[1:])):
        return edit.add("Flatten", (source,), type=type_, like=like)
    codes = as_ints(like.attrs.get("shape")) if canonical(like.op) == "Reshape" else ()
    if like.attrs.get("reverse") or _meaning(codes, before) != shape:
        codes = codes_for(before, shape)
    return edit.add("Reshape", (source,), {"shape": codes}, type_, like=like)


def _meaning(codes: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that Reshape's codes make; ``None`` for codes other than 0, -1 and extents."""
    if not codes or min(codes) < -1:
        return None
    try:
        return reshaped(before, codes)
    except ValueError:
        return None


def _collapse_static(edit: Edit, node: Node) -> Replacement:
    """A view that changes nothing goes; of two views in a row the inner one goes."""
    source = node.inputs[0]
    shape, before = static_shape(node.type), static_shape(edit.type(source))
    if shape is None or before is None:
        return None
    if shape == before:
        return source
    inner = _view_below(edit, source)
    if inner is None:
        return None
    origin = static_shape(edit.type(inner.inputs[0]))
    if origin is None or (origin != shape and edit.uses(source) > 1):
        return None
    return view(edit, inner.inputs[0], shape, node)


def _collapse_unknown(edit: Edit, node: Node) -> Replacement:
    """Pairs of views that cancel or merge whatever the shapes are."""
    inner = _view_below(edit, node.inputs[0])
    if inner is None or static_shape(node.type) is not None:
        return None
    source, op, below = inner.inputs[0], canonical(node.op), canonical(inner.op)
    if op == below == "Flatten":
        return inner.out()
    if op == "squeeze" and below == "expand_dims":
        axis = inner.attrs.get("axis")
        same = as_ints(node.attrs.get("axis")) == (axis,)
        return source if same and isinstance(axis, int) and axis >= 0 else None
    if edit.uses(inner.out()) > 1:
        return None
    codes = as_ints(node.attrs.get("shape"))
    # Codes other than -1 and extents refer to the shape of the input, which would be another one.
    if op == "Reshape" and codes and all(code == -1 or code > 0 for code in codes):
        return edit.add("Reshape", (source,), node.attrs, node.type, like=node)
    return None


def _view_below(edit: Edit, value: Value) -> Node | None:
    return edit.producer(value, VIEWS, only_user=False)


RULES = (
    Rule("collapse-views", VIEWS, _collapse_static),
    Rule("collapse-views", VIEWS, _collapse_unknown),
)
