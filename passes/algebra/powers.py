"""Powers with a constant exponent."""

from __future__ import annotations

from graphopt.ir.node import Node, Value
from graphopt.passes.algebra.numbers import is_float, scalar
from graphopt.passes.algebra.windows import NON_NEGATIVE
from graphopt.rewrite import Edit, Mismatch, Rule
from graphopt.rewrite.rule import Replacement

_BY_EXPONENT = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


def _power(edit: Edit, node: Node) -> Replacement:
    """Plain operators for the exponents that have them; MXNet's pow is some 20 times slower."""
    exponent = scalar(node)
    if not is_float(node.type) or edit.type(node.inputs[0]) != node.type:
        return None
    if exponent == 0:
        if edit.training:
            raise Mismatch("the gradient of x ** 0 at 0 is undefined in MXNet")
        return edit.add("ones_like", node.inputs, like=node)
    if exponent not in (*_BY_EXPONENT, 3, 4):
        return None
    if edit.precise:
        raise Mismatch("anything but pow rounds differently")
    if exponent in _BY_EXPONENT:
        source = _without_minus_zero(edit, node) if abs(exponent) == 0.5 else node.inputs[0]
        return edit.add(_BY_EXPONENT[exponent], (source,), like=node)
    square = edit.add("square", node.inputs, like=node)
    if exponent == 4:
        return edit.add("square", (square,), like=node)
    return edit.add("elemwise_mul", (square, node.inputs[0]), like=node)


def _without_minus_zero(edit: Edit, node: Node) -> Value:
    """What a power reads, for a root: of -0 that is -0, or -inf, and no power is."""
    source = node.inputs[0]
    if edit.producer(source, NON_NEGATIVE, only_user=False) is not None:
        return source
    return edit.add("_plus_scalar", (source,), {"scalar": 0.0}, like=node)


RULES = (Rule("plain-power", ("_power_scalar",), _power),)
