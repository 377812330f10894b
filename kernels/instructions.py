"""The instructions of kernels: how many operands, what they cost, how they are differentiated.

Derivatives follow MXNet where they are a matter of convention: ``relu`` and ``abs`` have slope 0 at
0; at NaN the slope of ``relu`` is 0, as it is by oneDNN, and that of ``relu_nan`` NaN, as it is by
MXNet itself. ``max`` and ``min`` give the whole gradient to the left operand where both are equal
and none of it to either where one is NaN; rounding, comparing and ``sign`` have none.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Makes an instruction and returns its value.
Emit = Callable[..., Any]
#: ``rule(emit, args, result, gradient)`` -> one gradient per operand, ``None`` for zero.
Rule = Callable[[Emit, Sequence[Any], Any, Any], Sequence[Any]]


class Kind(enum.Enum):
    """What an instruction runs over.

    - ``MAP``: one element.
    - ``REDUCE``: a row, to one value.
    - ``ROW``: a row, to a row; :mod:`graphopt.kernels.expand` writes it in terms of the others.
    """

    MAP = "map"
    REDUCE = "reduce"
    ROW = "row"


@dataclass(frozen=True)
class Info:
    """Facts about an instruction.

    Attributes:
        cost: of one element, in additions of a vectorised loop, roughly.
        gradient: the rule; ``None`` if it has no derivative here and graphs that need one must not
            use it.
        is_bool: whether it yields 0 or 1.
    """

    arity: int
    kind: Kind = Kind.MAP
    cost: float = 1.0
    gradient: Rule | None = None
    is_bool: bool = False


def _none(_e: Emit, args: Sequence[Any], _y: Any, _g: Any) -> Sequence[Any]:
    return (None,) * len(args)


def _unary(slope: Callable[[Emit, Any, Any], Any]) -> Rule:
    """The rule of a function whose derivative is ``slope(emit, x, y)``."""
    return lambda e, args, y, g: (e("mul", g, slope(e, args[0], y)),)


def _erf_slope(e: Emit, x: Any, _y: Any) -> Any:
    return e("mul", 2 / math.sqrt(math.pi), e("exp", e("neg", e("square", x))))


def _erf_gradients(e: Emit, args: Sequence[Any], y: Any, g: Any) -> Sequence[Any]:
    # The power follows from x, and is no variable of its own.
    return (e("mul", g, _erf_slope(e, args[0], y)), None)


def _gate_slopes(e: Emit, args: Sequence[Any], y: Any, g: Any) -> Sequence[Any]:
    gate, bent = e("sigmoid", args[0]), e("tanh", args[1])
    by_gate = e("mul", e("mul", g, y), e("sub", 1.0, gate))
    return by_gate, e("mul", e("mul", g, gate), e("sub", 1.0, e("square", bent)))


def _pow(e: Emit, args: Sequence[Any], _y: Any, g: Any) -> Sequence[Any]:
    x, p = args
    slope = e("mul", e("pow", x, e("sub", p, 1.0)), p)
    by_p = None if isinstance(p, float) else e("mul", g, e("mul", e("pow", x, p), e("log", x)))
    return (None if isinstance(x, float) else e("mul", g, slope), by_p)


def _where(e: Emit, args: Sequence[Any], _y: Any, g: Any) -> Sequence[Any]:
    return (None, e("where", args[0], g, 0.0), e("where", args[0], 0.0, g))


def _choice(left: str, right: str) -> Rule:
    """By the comparisons that give the gradient to each: where one is NaN, neither gets it."""

    def rule(e: Emit, args: Sequence[Any], _y: Any, g: Any) -> Sequence[Any]:
        return tuple(e("where", e(comparison, *args), g, 0.0) for comparison in (left, right))

    return rule


def _hypot(e: Emit, args: Sequence[Any], y: Any, g: Any) -> Sequence[Any]:
    return tuple(e("mul", g, e("div", arg, y)) for arg in args)


def _div(e: Emit, args: Sequence[Any], _y: Any, g: Any) -> Sequence[Any]:
    a, b = args
    by_a = e("div", g, b)
    by_b = None if isinstance(b, float) else e("neg", e("div", e("mul", by_a, a), b))
    return (by_a, by_b)


def _extremum(e: Emit, args: Sequence[Any], y: Any, g: Any) -> Sequence[Any]:
    return (e("where", e("eq", args[0], y), g, 0.0),)


def _softmax(e: Emit, _args: Sequence[Any], y: Any, g: Any) -> Sequence[Any]:
    return (e("mul", y, e("sub", g, e("reduce_sum", e("mul", g, y)))),)


def _log_softmax(e: Emit, _args: Sequence[Any], y: Any, g: Any) -> Sequence[Any]:
    return (e("sub", g, e("mul", e("exp", y), e("reduce_sum", g))),)


def _normalize(e: Emit, args: Sequence[Any], y: Any, g: Any) -> Sequence[Any]:
    x, epsilon = args
    count = e("extent")
    mean = e("div", e("reduce_sum", x), count)
    variance = e("div", e("reduce_sum", e("square", e("sub", x, mean))), count)
    scale = e("rsqrt", e("add", variance, epsilon))
    by_mean = e("div", e("reduce_sum", g), count)
    by_scale = e("div", e("reduce_sum", e("mul", g, y)), count)
    return (e("mul", scale, e("sub", e("sub", g, by_mean), e("mul", y, by_scale))), None)


def _constant_over(value: float, power: str) -> Rule:
    """Derivative ``value / power(x)``."""
    return _unary(lambda e, x, _y: e("div", value, e(power, x)))


_INV_LN2: Final = 1 / math.log(2)
_INV_LN10: Final = 1 / math.log(10)

INSTRUCTIONS: Final[dict[str, Info]] = {
    # arithmetic
    "literal": Info(1, cost=0, gradient=_none),
    "neg": Info(1, gradient=lambda e, a, y, g: (e("neg", g),)),
    "add": Info(2, gradient=lambda e, a, y, g: (g, g)),
    "sub": Info(2, gradient=lambda e, a, y, g: (g, e("neg", g))),
    "mul": Info(2, gradient=lambda e, a, y, g: (e("mul", g, a[1]), e("mul", g, a[0]))),
    "div": Info(2, cost=4, gradient=_div),
    "mod": Info(
        2,
        cost=10,
        gradient=lambda e, a, y, g: (
            g,
            e("neg", e("mul", g, e("floor", e("div", a[0], a[1])))),
        ),
    ),
    "max": Info(2, gradient=_choice("ge", "lt")),
    "min": Info(2, gradient=_choice("le", "gt")),
    "pow": Info(2, cost=40, gradient=_pow),
    "hypot": Info(2, cost=8, gradient=_hypot),
    "square": Info(1, gradient=_unary(lambda e, x, y: e("mul", 2.0, x))),
    "recip": Info(1, cost=4, gradient=_unary(lambda e, x, y: e("neg", e("square", y)))),
    "sqrt": Info(1, cost=6, gradient=lambda e, a, y, g: (e("div", e("mul", g, 0.5), y),)),
    "rsqrt": Info(1, cost=8, gradient=_unary(lambda e, x, y: e("mul", -0.5, e("div", y, x)))),
    "cbrt": Info(1, cost=20, gradient=_unary(lambda e, x, y: e("div", 1 / 3, e("square", y)))),
    "rcbrt": Info(1, cost=24, gradient=_unary(lambda e, x, y: e("mul", -1 / 3, e("div", y, x)))),
    "abs": Info(1, gradient=_unary(lambda e, x, y: e("sign", x))),
    "sign": Info(1, cost=2, gradient=_none),
    "rint": Info(1, gradient=_none),
    "round": Info(1, cost=3, gradient=_none),
    "floor": Info(1, gradient=_none),
    "ceil": Info(1, gradient=_none),
    "trunc": Info(1, gradient=_none),
    # to the nearest float16 and back, to the integer type, as storing and loading would do
    "half": Info(1, cost=2, gradient=lambda e, a, y, g: (e("half", g),)),
    # exponentials
    "exp": Info(1, cost=12, gradient=_unary(lambda e, x, y: y)),
    "expm1": Info(1, cost=14, gradient=_unary(lambda e, x, y: e("add", y, 1.0))),
    "log": Info(1, cost=14, gradient=lambda e, a, y, g: (e("div", g, a[0]),)),
    "log2": Info(1, cost=14, gradient=_unary(lambda e, x, y: e("div", _INV_LN2, x))),
    "log10": Info(1, cost=14, gradient=_unary(lambda e, x, y: e("div", _INV_LN10, x))),
    "log1p": Info(1, cost=16, gradient=lambda e, a, y, g: (e("div", g, e("add", 1.0, a[0])),)),
    "sigmoid": Info(1, cost=16, gradient=_unary(lambda e, x, y: e("mul", y, e("sub", 1.0, y)))),
    "softplus": Info(1, cost=30, gradient=_unary(lambda e, x, y: e("sigmoid", x))),
    "tanh": Info(1, cost=16, gradient=_unary(lambda e, x, y: e("sub", 1.0, e("square", y)))),
    "sinh": Info(1, cost=60, gradient=_unary(lambda e, x, y: e("cosh", x))),
    "cosh": Info(1, cost=60, gradient=_unary(lambda e, x, y: e("sinh", x))),
    "erf": Info(1, cost=24, gradient=_unary(_erf_slope)),
    # put in place of others by kernels/contract.py
    "exp_nonpositive": Info(1, cost=10, gradient=_unary(lambda e, x, y: y)),
    "one_plus_erf_by": Info(2, cost=12, gradient=_erf_gradients),
    "one_plus_erf": Info(1, cost=20, gradient=_unary(_erf_slope)),
    "sigmoid_times_tanh": Info(2, cost=28, gradient=_gate_slopes),
    # circular and hyperbolic
    "sin": Info(1, cost=20, gradient=_unary(lambda e, x, y: e("cos", x))),
    "cos": Info(1, cost=20, gradient=_unary(lambda e, x, y: e("neg", e("sin", x)))),
    "tan": Info(1, cost=60, gradient=_unary(lambda e, x, y: e("add", e("square", y), 1.0))),
    "arcsin": Info(
        1,
        cost=60,
        gradient=_unary(lambda e, x, y: e("rsqrt", e("sub", 1.0, e("square", x)))),
    ),
    "arccos": Info(
        1,
        cost=60,
        gradient=_unary(lambda e, x, y: e("neg", e("rsqrt", e("sub", 1.0, e("square", x))))),
    ),
    "arctan": Info(
        1,
        cost=60,
        gradient=_unary(lambda e, x, y: e("div", 1.0, e("add", e("square", x), 1.0))),
    ),
    "arcsinh": Info(1, cost=60, gradient=_unary(lambda e, x, y: e("recip", e("hypot", x, 1.0)))),
    "arccosh": Info(
        1,
        cost=60,
        gradient=_unary(lambda e, x, y: e("rsqrt", e("sub", e("square", x), 1.0))),
    ),
    "arctanh": Info(
        1,
        cost=60,
        gradient=_unary(lambda e, x, y: e("recip", e("sub", 1.0, e("square", x)))),
    ),
    # special functions by libm, without derivative
    "gamma": Info(1, cost=100),
    "gammaln": Info(1, cost=100),
    # choosing
    "relu": Info(1, gradient=lambda e, a, y, g: (e("where", e("gt", y, 0.0), g, 0.0),)),
    # the same with slope NaN at NaN: y is 0 or NaN where it is not positive
    "relu_nan": Info(1, gradient=lambda e, a, y, g: (e("where", e("gt", y, 0.0), g, y),)),
    "where": Info(3, gradient=_where),
    "eq": Info(2, gradient=_none, is_bool=True),
    "ne": Info(2, gradient=_none, is_bool=True),
    "lt": Info(2, gradient=_none, is_bool=True),
    "le": Info(2, gradient=_none, is_bool=True),
    "gt": Info(2, gradient=_none, is_bool=True),
    "ge": Info(2, gradient=_none, is_bool=True),
    "and": Info(2, gradient=_none, is_bool=True),
    "or": Info(2, gradient=_none, is_bool=True),
    "xor": Info(2, gradient=_none, is_bool=True),
    "not": Info(1, gradient=_none, is_bool=True),
    "stop": Info(1, cost=0, gradient=_none),
    "scale_gradient": Info(2, cost=0, gradient=lambda e, a, y, g: (e("mul", g, a[1]), None)),
    # y, whose slope by x is the third operand
    "with_slope": Info(3, cost=0, gradient=lambda e, a, y, g: (None, e("mul", g, a[2]), None)),
    # a loss layer's y, whose gradient by x is the third operand, whatever the head's
    "loss_of": Info(3, cost=0, gradient=lambda e, a, y, g: (None, a[2], None)),
    # rows
    "extent": Info(0, cost=0, gradient=_none, kind=Kind.REDUCE),
    "reduce_sum": Info(1, Kind.REDUCE, gradient=lambda e, a, y, g: (g,)),
    "reduce_max": Info(1, Kind.REDUCE, gradient=_extremum),
    # the largest that is a number; put in place of others by kernels/contract.py
    "reduce_max_number": Info(1, Kind.REDUCE, gradient=_extremum),
    "reduce_min": Info(1, Kind.REDUCE, gradient=_extremum),
    "reduce_prod": Info(
        1, Kind.REDUCE, gradient=lambda e, a, y, g: (e("mul", g, e("div", y, a[0])),)
    ),
    "softmax": Info(1, Kind.ROW, cost=20, gradient=_softmax),
    "log_softmax": Info(1, Kind.ROW, cost=20, gradient=_log_softmax),
    "normalize": Info(2, Kind.ROW, cost=8, gradient=_normalize),
}
