"""Casts: to the dtype that is there already, and in a row."""

from __future__ import annotations

from graphopt.ir.node import Node
from graphopt.passes.algebra.numbers import keeps_values
from graphopt.rewrite import Edit, Mismatch, Rule
from graphopt.rewrite.rule import Replacement

CASTS = ("Cast", "amp_cast")


def _cast(edit: Edit, node: Node) -> Replacement:
    """A cast to the same dtype goes; so does one on the way that loses nothing."""
    source, target = node.inputs[0], node.type.dtype
    if target is None:
        return None
    if edit.type(source).dtype == target:
        return source
    inner = edit.producer(source, CASTS, only_user=False)
    if inner is None:
        return None
    start, middle = edit.type(inner.inputs[0]).dtype, inner.type.dtype
    if not keeps_values(start, middle):
        return None
    if start == target:
        return inner.inputs[0]
    if edit.uses(source) > 1:
        return None
    if edit.precise and edit.training and not keeps_values(target, middle):
        raise Mismatch("the gradient would be rounded once instead of twice")
    return edit.add("Cast", inner.inputs, {"dtype": target}, like=node)


RULES = (Rule("merge-casts", CASTS, _cast),)
