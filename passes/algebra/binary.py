"""Two inputs of equal shape, or equal inputs."""

from __future__ import annotations

from graphopt.ir.node import Node
from graphopt.ir.ops import canonical
from graphopt.passes.algebra.numbers import are_integers, is_float
from graphopt.rewrite import Edit, Rule
from graphopt.rewrite.rule import Replacement

_ELEMENTWISE = {
    "broadcast_add": "elemwise_add",
    "broadcast_sub": "elemwise_sub",
    "broadcast_mul": "elemwise_mul",
    "broadcast_div": "elemwise_div",
    "broadcast_maximum": "_maximum",
    "broadcast_minimum": "_minimum",
    "broadcast_power": "_power",
    "broadcast_hypot": "_hypot",
}


def _elementwise(edit: Edit, node: Node) -> Replacement:
    """Broadcasting equal shapes is working element by element, which oneDNN can fuse."""
    if not node.type.is_static or any(edit.type(v) != node.type for v in node.inputs):
        return None
    return edit.add(_ELEMENTWISE[canonical(node.op)], node.inputs, like=node)


def _of_itself(edit: Edit, node: Node) -> Replacement:
    """``x + x`` is ``2 x`` and ``x * x`` is the square: one read instead of two."""
    left, right = node.inputs
    if left != right:
        return None
    if canonical(node.op) == "elemwise_mul":
        # Of integers MXNet computes the square in float32.
        return edit.add("square", (left,), like=node) if is_float(node.type) else None
    if not is_float(node.type) and not are_integers(node.type.dtype, 2):
        return None
    return edit.add("_mul_scalar", (left,), {"scalar": 2.0}, like=node)


RULES = (
    Rule("drop-broadcast", tuple(_ELEMENTWISE), _elementwise),
    Rule("use-once", ("elemwise_add", "elemwise_mul"), _of_itself),
)
