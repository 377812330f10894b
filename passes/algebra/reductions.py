"""Reductions that do nothing, or follow one another."""

from __future__ import annotations

from graphopt.ir.node import Node
from graphopt.ir.ops import canonical
from graphopt.passes.algebra.numbers import is_float
from graphopt.passes.layout.transposes import REDUCTIONS, reduced_axes
from graphopt.passes.layout.views import as_ints, static_shape, view
from graphopt.rewrite import Edit, Mismatch, Rule
from graphopt.rewrite.rule import Replacement


def _over_one(edit: Edit, node: Node) -> Replacement:
    """Reducing axes of length 1 only changes the shape."""
    source = node.inputs[0]
    shape, result = static_shape(edit.type(source)), static_shape(node.type)
    if shape is None or result is None or edit.type(source).dtype != node.type.dtype:
        return None
    if any(shape[axis] != 1 for axis in reduced_axes(node, len(shape))):
        return None
    if edit.training and canonical(node.op) in ("max", "min") and is_float(node.type):
        raise Mismatch("where x is undefined the gradient of the largest or smallest is 0")
    return view(edit, source, result, node)


def _of_reduction(edit: Edit, node: Node) -> Replacement:
    """A sum of sums is one sum over the axes of both; likewise mean, max and min."""
    inner = edit.producer(node.inputs[0], (canonical(node.op),))
    rank = None if inner is None else edit.type(inner.inputs[0]).rank
    if inner is None or rank is None or inner.type.rank is None:
        return None
    keeps = bool(node.attrs.get("keepdims"))
    types = {edit.type(inner.inputs[0]).dtype, inner.type.dtype, node.type.dtype}
    if keeps != bool(inner.attrs.get("keepdims")) or len(types) > 1:
        return None
    if canonical(node.op) == "mean" and not is_float(node.type):
        raise Mismatch("a mean of integers is rounded")
    if edit.precise and canonical(node.op) in ("sum", "mean"):
        raise Mismatch("the sum would be taken in another order")
    first = reduced_axes(inner, rank)
    left = [axis for axis in range(rank) if keeps or axis not in first]
    if not left:
        return None
    second = tuple(left[axis] for axis in reduced_axes(node, inner.type.rank))
    attrs = node.attrs.set(axis=tuple(sorted({*first, *second}))).without("exclude")
    return edit.add(node.op, inner.inputs, attrs, like=node)


def _moments(edit: Edit, node: Node) -> Replacement:
    """A variance is a mean of squares.

    MXNet computes it of the mean that is the operator's first result, which is garbage in a graph
    that does not read that.
    """
    source = node.inputs[0]
    type_ = edit.type(source)
    if type_.shape is None or not type_.is_static or not is_float(type_):
        return None
    axes = tuple(a % len(type_.shape) for a in as_ints(node.attrs.get("axes")))
    if not axes:  # which MXNet refuses
        return None
    kept = type_.with_shape(tuple(1 if a in axes else n for a, n in enumerate(type_.shape)))
    mean = edit.add("mean", [source], {"axis": axes, "keepdims": True}, kept, like=node)
    apart = edit.add("broadcast_sub", [source, mean], type=type_, like=node)
    squared = edit.add("square", [apart], type=type_, like=node)
    attrs = {"axis": axes, "keepdims": bool(node.attrs.get("keepdims"))}
    first, second = (
        edit.add("mean", [value], attrs, own, like=node)
        for value, own in zip((source, squared), node.types, strict=True)
    )
    return first, second


RULES = (
    Rule("open-moments", ("moments",), _moments),
    Rule("drop-reduction", REDUCTIONS, _over_one),
    Rule("merge-reductions", REDUCTIONS, _of_reduction),
)
