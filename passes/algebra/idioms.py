"""Expressions of two or three operators that one operator computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.ir.attrs import EMPTY, AttrValue
from graphopt.passes.algebra.numbers import is_float
from graphopt.rewrite import Edit, Match, Mismatch, Op, PatternRule, Rule, Var
from graphopt.rewrite.rule import Replacement

Build = Callable[[Edit, Match], Replacement]

ROUNDS = "it would round differently"
X, Y = Var("x"), Var("y")


def _to(
    op: str,
    *names: str,
    attrs: Mapping[str, AttrValue] = EMPTY,
    exact: bool = False,
    training: str = "",
) -> Build:
    """Replace a match by ``op`` of the variables ``names``.

    Args:
        op: the operator.
        names: of the variables it reads.
        attrs: its attributes.
        exact: whether it gives the same bits.
        training: why gradients forbid it.
    """

    def build(edit: Edit, match: Match) -> Replacement:
        if not is_float(match.root.type):
            return None
        if training and edit.training:
            raise Mismatch(training)
        if edit.precise and not exact:
            raise Mismatch(ROUNDS)
        return edit.add(op, [match[name] for name in names], attrs, like=match.root)

    return build


def _never(reason: str) -> Build:
    """Refuse: the expression looks like x but is not."""

    def build(edit: Edit, match: Match) -> Replacement:
        if is_float(match.root.type):
            raise Mismatch(reason)
        return None

    return build


def _is(number: float) -> Callable[[AttrValue], bool]:
    return lambda found: found is not None and float(found) == number


def _both_forms(name: str, elementwise: str, broadcast: str, *inputs: Var | Op) -> list[Rule]:
    """``name`` over both binary operators; the replacement is chosen by the table below."""
    return [
        PatternRule(name, Op(form, *inputs), build)
        for form, build in zip((elementwise, broadcast), _BINARY_RESULT[name], strict=True)
    ]


_BINARY_RESULT: dict[str, tuple[Build, Build]] = {
    "add-negative": (
        _to("elemwise_sub", "x", "y", exact=True),
        _to("broadcast_sub", "x", "y", exact=True),
    ),
    "subtract-negative": (
        _to("elemwise_add", "x", "y", exact=True),
        _to("broadcast_add", "x", "y", exact=True),
    ),
    "multiply-negatives": (
        _to("elemwise_mul", "x", "y", exact=True),
        _to("broadcast_mul", "x", "y", exact=True),
    ),
    "multiply-reciprocal": (
        _to("elemwise_div", "x", "y"),
        _to("broadcast_div", "x", "y"),
    ),
    "divide-by-reciprocal": (
        _to("elemwise_mul", "x", "y"),
        _to("broadcast_mul", "x", "y"),
    ),
}

_NEGATIVE_Y = Op("negative", Y)
_ONE_PLUS_EXP = Op("_plus_scalar", Op("exp", Op("negative", X)), scalar=_is(1))

RULES = (
    *_both_forms("add-negative", "elemwise_add", "broadcast_add", X, _NEGATIVE_Y),
    *_both_forms("subtract-negative", "elemwise_sub", "broadcast_sub", X, _NEGATIVE_Y),
    *_both_forms(
        "multiply-negatives", "elemwise_mul", "broadcast_mul", Op("negative", X), _NEGATIVE_Y
    ),
    *_both_forms("multiply-reciprocal", "elemwise_mul", "broadcast_mul", X, Op("reciprocal", Y)),
    *_both_forms("divide-by-reciprocal", "elemwise_div", "broadcast_div", X, Op("reciprocal", Y)),
    PatternRule("sigmoid", Op("reciprocal", _ONE_PLUS_EXP), _to("sigmoid", "x")),
    PatternRule("log1p", Op("log", Op("_plus_scalar", X, scalar=_is(1))), _to("log1p", "x")),
    PatternRule("expm1", Op("_minus_scalar", Op("exp", X), scalar=_is(1)), _to("expm1", "x")),
    PatternRule("expm1", Op("_plus_scalar", Op("exp", X), scalar=_is(-1)), _to("expm1", "x")),
    PatternRule("rsqrt", Op("reciprocal", Op("sqrt", X)), _to("rsqrt", "x")),
    PatternRule(
        "sqrt",
        Op("reciprocal", Op("rsqrt", X)),
        _to("sqrt", "x", training="the gradient at 0 would be infinite instead of undefined"),
    ),
    PatternRule(
        "abs",
        Op("sqrt", Op("square", X)),
        _to("abs", "x", training="the gradient at 0 would be 0 instead of undefined"),
    ),
    PatternRule("drop-sign", Op("abs", Op("negative", X)), _to("abs", "x", exact=True)),
    PatternRule("drop-sign", Op("square", Op("negative", X)), _to("square", "x", exact=True)),
    PatternRule("drop-sign", Op("square", Op("abs", X)), _to("square", "x", exact=True)),
    PatternRule("square-of-sqrt", Op("square", Op("sqrt", X)), _never("x < 0 gives no number")),
    PatternRule("exp-of-log", Op("exp", Op("log", X)), _never("x < 0 gives no number")),
    PatternRule("log-of-exp", Op("log", Op("exp", X)), _never("exp(x) may overflow")),
    *(
        PatternRule("x-minus-x", Op(op, X, X), _never("it is not 0 for infinite and undefined x"))
        for op in ("elemwise_sub", "broadcast_sub")
    ),
    *(
        PatternRule("x-over-x", Op(op, X, X), _never("it is not 1 for x = 0"))
        for op in ("elemwise_div", "broadcast_div")
    ),
)
