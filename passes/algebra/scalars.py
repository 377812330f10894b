"""Operators with one scalar: neutral ones, chains, and tensors that are a scalar in disguise."""

from __future__ import annotations

import math
from typing import NamedTuple

from graphopt.analysis.rounding import cancels
from graphopt.ir.constant import constant_array
from graphopt.ir.node import CONSTANT, Node, Value
from graphopt.ir.ops import canonical
from graphopt.passes.algebra.numbers import (
    are_factors,
    are_held,
    are_integers,
    is_float,
    is_power_of_two,
    scalar,
)
from graphopt.rewrite import Edit, Mismatch, Rule
from graphopt.rewrite.rule import Replacement

ROUNDS = "merging the scalars would round differently"

_NEUTRAL = {
    "_plus_scalar": 0.0,
    "_minus_scalar": 0.0,
    "_mul_scalar": 1.0,
    "_div_scalar": 1.0,
    "_power_scalar": 1.0,
    "_maximum_scalar": -math.inf,
    "_minimum_scalar": math.inf,
}

#: Operators whose result is another one for -0 than for 0, as the number of what they read.
_TELLS_ZEROS = {
    **dict.fromkeys(("sqrt", "rsqrt", "rcbrt", "reciprocal", "_rdiv_scalar"), 0),
    **dict.fromkeys(("_power_scalar", "_power", "broadcast_power"), 0),
    **dict.fromkeys(("elemwise_div", "broadcast_div"), 1),
}


def _neutral(edit: Edit, node: Node) -> Replacement:
    """``x + 0``, ``x * 1``, ``x ** 1`` ... are x."""
    op, value = canonical(node.op), scalar(node)
    source = edit.type(node.inputs[0])
    if op == "_mul_scalar" and value == 0 and is_float(source):
        raise Mismatch("x * 0 is not 0 for infinite and undefined x")
    if value != _NEUTRAL[op] or source.dtype is None or source != node.type:
        return None
    if not is_float(source) and op not in ("_plus_scalar", "_minus_scalar", "_mul_scalar"):
        return None
    if edit.precise and _adds_zero(node) and is_float(source):
        raise Mismatch("x + 0 turns -0 into 0")
    if _shows_sign_of_zero(edit, node):
        return None
    if edit.training and op in ("_maximum_scalar", "_minimum_scalar"):
        raise Mismatch("where x is undefined the gradient of a limit is 0")
    return node.inputs[0]


def _shows_sign_of_zero(edit: Edit, node: Node) -> bool:
    """Whether it is an ``x + 0``, which turns -0 into 0, and something reads it that tells them.

    What is divided by it, or a root or power of it that has no end, is infinite with its sign.
    """
    if not _adds_zero(node):
        return False
    users = [edit.graph[use.node] for use in edit.graph.users(node.out())]
    return any(
        user.inputs[_TELLS_ZEROS[canonical(user.op)]] == node.out()
        for user in users
        if canonical(user.op) in _TELLS_ZEROS
    )


def _adds_zero(node: Node) -> bool:
    """Whether it is an ``x + 0``, or an ``x - (-0.0)``, which is the same; ``x - 0`` is not."""
    op, value = canonical(node.op), scalar(node)
    sign = {"_plus_scalar": 1, "_minus_scalar": -1}.get(op)
    return value == 0 and sign is not None and math.copysign(1, value) == sign


class _Sum(NamedTuple):
    """``sign * x + offset``."""

    sign: int
    offset: float


def _as_sum(node: Node) -> _Sum | None:
    op = canonical(node.op)
    if op == "negative":
        return _Sum(-1, 0.0)
    if op == "_plus_scalar":
        return _Sum(1, scalar(node))
    if op == "_minus_scalar":
        return _Sum(1, -scalar(node))
    return _Sum(-1, scalar(node)) if op == "_rminus_scalar" else None


SUMS = ("_plus_scalar", "_minus_scalar", "_rminus_scalar", "negative")


def _chain_of_sums(edit: Edit, node: Node) -> Replacement:
    """``(x + a) + b`` is ``x + (a + b)``; likewise with differences and negations."""
    outer = _as_sum(node)
    inner_node = edit.producer(node.inputs[0], SUMS, only_user=False)
    inner = None if inner_node is None else _as_sum(inner_node)
    if outer is None or inner_node is None or inner is None or inner_node.type != node.type:
        return None
    if inner.offset == 0 and _shows_sign_of_zero(edit, node):
        return None
    terms = (outer.sign * inner.offset, outer.offset)
    both = _Sum(outer.sign * inner.sign, sum(terms))
    is_negation = outer == inner == (-1, 0.0)
    if edit.uses(node.inputs[0]) > 1 and both != (1, 0.0):
        return None
    dtype = node.type.dtype
    if not is_float(node.type):
        if not are_integers(dtype, abs(inner.offset), abs(outer.offset), abs(both.offset)):
            return None
    elif not is_negation:
        if edit.precise:
            raise Mismatch(ROUNDS)
        if not all(map(math.isfinite, terms)) or cancels(*terms):
            raise Mismatch("the scalars cancel, so that rounding x may be their purpose")
        if not are_held(dtype, both.offset):
            raise Mismatch(f"their sum is no {dtype}")
    source = inner_node.inputs[0]
    return source if both == (1, 0.0) else _add_sum(edit, source, both, node)


def _add_sum(edit: Edit, source: Value, what: _Sum, like: Node) -> Value:
    if what.sign < 0:
        if what.offset == 0:
            return edit.add("negative", (source,), like=like)
        return edit.add("_rminus_scalar", (source,), {"scalar": what.offset}, like=like)
    op = "_plus_scalar" if what.offset >= 0 else "_minus_scalar"
    return edit.add(op, (source,), {"scalar": abs(what.offset)}, like=like)


class _Product(NamedTuple):
    """``x ** power * over / under``, power being 1 or -1."""

    power: int
    over: float
    under: float = 1.0


def _as_product(node: Node) -> _Product | None:
    op = canonical(node.op)
    if op == "negative":
        return _Product(1, -1.0)
    if op == "reciprocal":
        return _Product(-1, 1.0)
    if op == "_mul_scalar":
        return _Product(1, scalar(node))
    if op == "_div_scalar":
        return _Product(1, 1.0, scalar(node))
    return _Product(-1, scalar(node)) if op == "_rdiv_scalar" else None


PRODUCTS = ("_mul_scalar", "_div_scalar", "_rdiv_scalar", "negative", "reciprocal")


def _chain_of_products(edit: Edit, node: Node) -> Replacement:
    """``(x * a) * b`` is ``x * (a * b)``; likewise with quotients and negations."""
    outer = _as_product(node)
    inner_node = edit.producer(node.inputs[0], PRODUCTS, only_user=False)
    inner = None if inner_node is None else _as_product(inner_node)
    if outer is None or inner_node is None or inner is None or inner_node.type != node.type:
        return None
    scale = inner[1:] if outer.power > 0 else (inner.under, inner.over)
    both = _Product(outer.power * inner.power, outer.over * scale[0], outer.under * scale[1])
    is_same = both.power == 1 and both.over == both.under
    factors = (*outer[1:], *inner[1:], *both[1:])
    if edit.uses(node.inputs[0]) > 1 and not is_same:
        return None
    if not is_float(node.type):
        is_exact = outer.power == inner.power == 1 and both.under == 1
        if not is_exact or not are_integers(node.type.dtype, *map(abs, factors)):
            return None
    else:
        _check_factors(edit, node, outer, inner, factors)
    source = inner_node.inputs[0]
    return source if is_same else _add_product(edit, source, both, node)


def _check_factors(
    edit: Edit, node: Node, outer: _Product, inner: _Product, factors: tuple[float, ...]
) -> None:
    if outer.power == inner.power == -1:
        if edit.training:
            raise Mismatch("the gradient of a reciprocal at 0 is not finite, that of x is")
        if edit.precise:
            raise Mismatch(ROUNDS)
    is_sign = any(p.power == 1 and abs(p.over) == abs(p.under) for p in (outer, inner))
    if edit.precise and not is_sign:
        raise Mismatch(ROUNDS)
    if not are_factors(node.type.dtype, *factors):
        raise Mismatch("the product may overflow or vanish halfway")


def _add_product(edit: Edit, source: Value, what: _Product, like: Node) -> Value:
    over, under = what.over, what.under
    if what.power < 0:
        if over == under:
            return edit.add("reciprocal", (source,), like=like)
        return edit.add("_rdiv_scalar", (source,), {"scalar": over / under}, like=like)
    if over == -under:
        return edit.add("negative", (source,), like=like)
    if abs(over) == 1:
        return edit.add("_div_scalar", (source,), {"scalar": under * over}, like=like)
    return edit.add("_mul_scalar", (source,), {"scalar": over / under}, like=like)


def _cheaper(edit: Edit, node: Node) -> Replacement:
    """The plainest operator of equal value: negation, reciprocal, multiplication for division."""
    op, value, source = canonical(node.op), scalar(node), node.inputs[0]
    if not is_float(node.type) or edit.type(source) != node.type:
        return None
    if op in ("_mul_scalar", "_div_scalar") and value == -1:
        return edit.add("negative", (source,), like=node)
    if op == "_rdiv_scalar" and value == 1:
        return edit.add("reciprocal", (source,), like=node)
    if op != "_div_scalar" or not is_power_of_two(value):
        return None
    if not are_factors(node.type.dtype, value):
        return None
    return edit.add("_mul_scalar", (source,), {"scalar": 1 / value}, like=node)


#: operator -> (scalar operator when the right input is uniform, and when the left one is)
_WITH_SCALAR = {
    "add": ("_plus_scalar", "_plus_scalar"),
    "sub": ("_minus_scalar", "_rminus_scalar"),
    "mul": ("_mul_scalar", "_mul_scalar"),
    "div": ("_div_scalar", "_rdiv_scalar"),
    "power": ("_power_scalar", "_rpower_scalar"),
    "maximum": ("_maximum_scalar", "_maximum_scalar"),
    "minimum": ("_minimum_scalar", "_minimum_scalar"),
}
_BINARY = {
    **{f"broadcast_{name}": name for name in _WITH_SCALAR},
    **{f"elemwise_{name}": name for name in ("add", "sub", "mul", "div")},
    **{f"_{name}": name for name in ("power", "maximum", "minimum")},
}


def _uniform_operand(edit: Edit, node: Node) -> Replacement:
    """A tensor of equal elements is a scalar, where the other input has the result's shape."""
    name = _BINARY[canonical(node.op)]
    for position in (1, 0):
        other = node.inputs[1 - position]
        if not node.type.is_static or edit.type(other) != node.type:
            continue
        value = uniform(edit, node.inputs[position])
        if value is None:
            continue
        if edit.training and position == 0 and name in ("maximum", "minimum"):
            # The left input gets the gradient of a tie, and of a scalar the tensor does.
            raise Mismatch("where both are equal the gradient would go to the other input")
        if not is_float(node.type) and not are_integers(node.type.dtype, value):
            return None
        op = _WITH_SCALAR[name][1 - position]
        return edit.add(op, (other,), {"scalar": value}, like=node)
    return None


#: Constants up to this many elements are looked at.
MAX_ELEMENTS = 4096


def uniform(edit: Edit, value: Value) -> float | None:
    """The number every element of a value is, if it is known and finite."""
    node = edit.node(value)
    op = canonical(node.op)
    if op in ("_zeros", "zeros_like", "_ones", "ones_like"):
        return 0.0 if "zeros" in op else 1.0
    if op == "_full":
        number = float(node.attrs["value"])
    elif op == CONSTANT and 0 < (node.type.size or 0) <= MAX_ELEMENTS:
        array = constant_array(node)
        if (array != array.flat[0]).any():
            return None
        number = float(array.flat[0])
    else:
        return None
    return number if math.isfinite(number) else None


RULES = (
    Rule("drop-neutral", tuple(_NEUTRAL), _neutral),
    Rule("cheaper-scalar", ("_mul_scalar", "_div_scalar", "_rdiv_scalar"), _cheaper),
    Rule("merge-scalars", SUMS, _chain_of_sums),
    Rule("merge-scalars", PRODUCTS, _chain_of_products),
    Rule("uniform-to-scalar", tuple(_BINARY), _uniform_operand),
)
