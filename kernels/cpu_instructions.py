"""What an instruction of a spec is in LLVM IR, for CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from graphopt.kernels.cpu_memory import converted
from graphopt.kernels.lowering import Emit
from graphopt.kernels.vecmath import expression, float32, float64
from graphopt.kernels.vecmath.elementary import Format
from graphopt.kernels.vecmath.intrinsics import (
    Value,
    copysign,
    fabs,
    select,
    trunc,
)
from graphopt.kernels.vecmath.libm import library_call

_VECMATH = {
    "abs": "abs",
    "ceil": "ceil",
    "cbrt": "cbrt",
    "cos": "cos",
    "erf": "erf",
    "exp": "exp",
    "expm1": "expm1",
    "floor": "floor",
    "log": "log",
    "log10": "log10",
    "log1p": "log1p",
    "log2": "log2",
    "max": "maximum",
    "min": "minimum",
    "pow": "pow",
    "rcbrt": "rcbrt",
    "rint": "rint",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "sin": "sin",
    "softplus": "softplus",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "trunc": "trunc",
}
#: Functions that the C library computes, one element at a time, by its name for them.
_LIBM = {
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctanh": "atanh",
    "cosh": "cosh",
    "gamma": "tgamma",
    "gammaln": "lgamma",
    "hypot": "hypot",
    "sinh": "sinh",
    "tan": "tan",
}


def instruction(op: str, dtype: str, precise: bool) -> Emit | None:
    """The function that kernels call for an instruction; ``None`` for one that is none."""
    if op in _VECMATH:
        return _of_values(expression(_VECMATH[op], dtype, precise))
    if op in _LIBM:
        return _of_values(library_call(_LIBM[op], _ARITY.get(op, 1)))
    return _of_values(_DIRECT[op]) if op in _DIRECT else None


_ARITY = {"hypot": 2}


def _of_values(emit: Callable[..., Value]) -> Emit:
    def generate(builder: Any, args: Sequence[Any]) -> Any:
        return emit(*(Value(builder, value) for value in args)).ir

    return generate


def _truth(condition: Value, like: Value) -> Value:
    return select(condition, like.like(1.0), like.like(0.0))


def _is_true(x: Value) -> Value:
    # Unordered: NaN counts as true, as in C.
    zero = x.like(0.0).ir
    return Value(x.builder, x.builder.fcmp_unordered("!=", x.ir, zero, flags=("contract",)))


def _compare(sign: str) -> Callable[[Value, Value], Value]:
    def compare(x: Value, y: Value) -> Value:
        check = x.builder.fcmp_unordered if sign == "!=" else x.builder.fcmp_ordered
        return _truth(Value(x.builder, check(sign, x.ir, y.ir, flags=("contract",))), x)

    return compare


def _round(x: Value) -> Value:
    """The nearest integer, halves away from zero."""
    whole = trunc(x)
    return select(fabs(x - whole) >= 0.5, whole + copysign(x.like(1.0), x), whole)


def _sign(x: Value) -> Value:
    return select(x > 0.0, x.like(1.0), select(x < 0.0, x.like(-1.0), x.like(0.0)))


def _half(x: Value) -> Value:
    dtype = "float32" if x.ir.type == ir.FloatType() else "float64"
    rounded = converted(x.builder, x.ir, dtype, "float16")
    return Value(x.builder, converted(x.builder, rounded, "float16", dtype))


def _relu(x: Value) -> Value:
    return select(x <= 0.0, x.like(0.0), x)


def _one_plus_erf(x: Value) -> Value:
    if x.ir.type == ir.FloatType():
        return float32.one_plus_erf(x)
    return float64.FORMAT.erf(x) + 1.0


def _format_of(x: Value) -> Format:
    return float32.FORMAT if x.ir.type == ir.FloatType() else float64.FORMAT


def _exp_nonpositive(x: Value) -> Value:
    return _format_of(x).exp_nonpositive(x)


def _sigmoid_times_tanh(x: Value, y: Value) -> Value:
    return _format_of(x).sigmoid_times_tanh(x, y)


def _where(condition: Value, x: Value, y: Value) -> Value:
    return select(_is_true(condition), x, y)


def _recip(x: Value) -> Value:
    return Value(x.builder, x.builder.fdiv(x.like(1.0).ir, x.ir))


def _mod(x: Value, y: Value) -> Value:
    """The remainder with the divisor's sign, as Python's, and 0 for the divisor 0; in float64.

    Where both are negative a remainder of 0 is too, as in MXNet.
    """
    a, b = (v if v.ir.type == ir.DoubleType() else v.widened() for v in (x, y))
    rest = Value(a.builder, a.builder.frem(a.ir, b.ir))
    zero = a.like(0.0)
    opposed = (a < zero) ^ (b < zero)
    rest = select(opposed, select(rest.equals(zero), zero, rest + b), rest)
    rest = select(b.equals(zero), zero, rest)
    return rest if x.ir.type == ir.DoubleType() else rest.narrowed()


def _not(x: Value) -> Value:
    return select(_is_true(x), x.like(0.0), x.like(1.0))


def _and(x: Value, y: Value) -> Value:
    return _truth(_is_true(x) & _is_true(y), x)


def _or(x: Value, y: Value) -> Value:
    return _truth(_is_true(x) | _is_true(y), x)


def _xor(x: Value, y: Value) -> Value:
    return _truth(_is_true(x) ^ _is_true(y), x)


_DIRECT: dict[str, Callable[..., Value]] = {
    "and": _and,
    "eq": _compare("=="),
    "exp_nonpositive": _exp_nonpositive,
    "ge": _compare(">="),
    "gt": _compare(">"),
    "half": _half,
    "le": _compare("<="),
    "lt": _compare("<"),
    "mod": _mod,
    "ne": _compare("!="),
    "not": _not,
    "one_plus_erf": _one_plus_erf,
    "one_plus_erf_by": float32.one_plus_erf_by,
    "or": _or,
    "recip": _recip,
    "relu": _relu,
    "relu_nan": _relu,
    "round": _round,
    "sigmoid_times_tanh": _sigmoid_times_tanh,
    "sign": _sign,
    "where": _where,
    "xor": _xor,
}


def reducer(op: str) -> Emit:
    """The function that combines two values of a reduction."""
    return _of_values(_REDUCERS[op])


def _any_order(operation: str) -> Callable[[Value, Value], Value]:
    """Addition or multiplication that the vectoriser may reorder, which the rest may not be."""

    def combine(x: Value, y: Value) -> Value:
        made = getattr(x.builder, operation)(x.ir, y.ir, flags=("reassoc", "contract"))
        return Value(x.builder, made)

    return combine


def _extreme(name: str, *allowed: str) -> Callable[[Value, Value], Value]:
    """llvm.maximum or llvm.minimum: NaN goes through, either of two zeros may come out.

    ``nnan`` leaves it to the processor what becomes of NaN, and makes one instruction of three.
    """

    def combine(x: Value, y: Value) -> Value:
        kind = x.ir.type
        signature = ir.FunctionType(kind, [kind, kind])
        function = x.builder.module.declare_intrinsic(name, (kind,), signature)
        return Value(x.builder, x.builder.call(function, [x.ir, y.ir], fastmath=("nsz", *allowed)))

    return combine


_REDUCERS = {
    "reduce_sum": _any_order("fadd"),
    "reduce_prod": _any_order("fmul"),
    "reduce_max": _extreme("llvm.maximum"),
    "reduce_max_number": _extreme("llvm.maxnum", "nnan"),
    "reduce_min": _extreme("llvm.minimum"),
}
