"""Limits: clip, maximum and minimum with a scalar, relu.

Each keeps x within a window and passes the gradient inside. At the border relu passes none, the
others do, so in training they are merged only where that does not show.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.passes.algebra.numbers import is_float, scalar
from graphopt.passes.fusion.operators import number, single
from graphopt.rewrite import Edit, Mismatch, Rule
from graphopt.rewrite.rule import Replacement

BORDER = "where x is at the border the gradient would be another one"

OPS = ("clip", "_maximum_scalar", "_minimum_scalar", "relu")


class _Window(NamedTuple):
    low: float
    high: float


def _window(node: Node) -> _Window:
    op = canonical(node.op)
    if op == "clip":
        bound = single if node.type.dtype == "float64" else number  # others round them anyway
        return _Window(*(bound(node.attrs, name, 0.0) for name in ("a_min", "a_max")))
    if op == "relu":
        return _Window(0.0, math.inf)
    limit = scalar(node)
    return _Window(limit, math.inf) if op == "_maximum_scalar" else _Window(-math.inf, limit)


def _merge(edit: Edit, node: Node) -> Replacement:
    """A window of a window is their intersection."""
    inner = edit.producer(node.inputs[0], OPS)
    if inner is None or not is_float(node.type) or inner.type != node.type:
        return None
    if edit.type(inner.inputs[0]) != node.type:
        return None  # as NumPy has it of integers and a limit that is none
    ops = {canonical(node.op), canonical(inner.op)}
    one, two = _window(inner), _window(node)
    both = _Window(max(one.low, two.low), min(one.high, two.high))
    if not (one.low <= one.high and two.low <= two.high and both.low <= both.high):
        raise Mismatch("the windows do not overlap, the result is constant")
    if len(ops) > 1 and edit.precise:
        raise Mismatch("clip keeps the sign of -0, the others do not")
    keeps_border = "relu" not in ops or both.low > 0 or math.isinf(both.high)
    if edit.training and not keeps_border:
        raise Mismatch(BORDER)
    if node.type.dtype == "float64" and not _is_clip(both):
        raise Mismatch("clip holds its bounds as float32")
    return _add(edit, inner.inputs[0], both, node, is_relu="relu" in ops and both.low == 0)


def _is_clip(window: _Window) -> bool:
    """Whether a clip has those bounds, or another operator does that has one."""
    with np.errstate(over="ignore"):
        is_exact = all(float(np.float32(bound)) == bound for bound in window)
    return is_exact or math.isinf(window.low) or math.isinf(window.high)


def _add(edit: Edit, source: Value, window: _Window, like: Node, *, is_relu: bool) -> Value:
    low, high = window
    if math.isinf(high):
        if is_relu:
            return edit.add("relu", (source,), like=like)
        return edit.add("_maximum_scalar", (source,), {"scalar": low}, like=like)
    if math.isinf(low):
        return edit.add("_minimum_scalar", (source,), {"scalar": high}, like=like)
    return edit.add("clip", (source,), {"a_min": low, "a_max": high}, like=like)


def _to_relu(edit: Edit, node: Node) -> Replacement:
    """``maximum(x, 0)`` is relu, but for the gradient at 0."""
    if scalar(node) != 0 or not is_float(node.type) or edit.type(node.inputs[0]) != node.type:
        return None
    if edit.training:
        raise Mismatch("at 0 the gradient of maximum is 1, that of relu is 0")
    return edit.add("relu", node.inputs, like=node)


def _leaky(edit: Edit, node: Node) -> Replacement:
    """A LeakyReLU without slope is relu."""
    slope = float(node.attrs.get("slope", 0.25))
    if node.attrs.get("act_type", "leaky") != "leaky" or slope != 0 or not is_float(node.type):
        return None
    if edit.precise:
        raise Mismatch("-inf * 0 is not a number")
    return edit.add("Activation", node.inputs[:1], {"act_type": "relu"}, like=node)


#: Operators that return no negative floats, and no -0.
NON_NEGATIVE = ("abs", "exp", "relu", "sigmoid", "softmax", "square")


def _idle(edit: Edit, node: Node) -> Replacement:
    """What is not negative needs no relu and no abs."""
    source = node.inputs[0]
    if canonical(node.op) == "Activation":
        # It turns NaN into 0, and so may replace nothing but its like.
        return source if _is_relu_layer(node) and _is_relu_layer(edit.node(source)) else None
    if _is_relu_layer(edit.node(source)):
        return source
    if not is_float(node.type):
        return None  # integers wrap: of -128 in int8 even abs is negative
    inner = edit.producer(source, NON_NEGATIVE, only_user=False)
    return None if inner is None else source


def _is_relu_layer(node: Node) -> bool:
    return canonical(node.op) == "Activation" and node.attrs.get("act_type") == "relu"


RULES = (
    Rule("drop-idle-limit", ("relu", "abs", "Activation"), _idle),
    Rule("merge-limits", OPS, _merge),
    Rule("maximum-to-relu", ("_maximum_scalar",), _to_relu),
    Rule("leaky-to-relu", ("LeakyReLU",), _leaky),
)
