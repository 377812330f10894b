"""The same functions by the C library, for whoever wants its results rather than speed."""

from collections.abc import Callable

from llvmlite import ir  # type: ignore[import-untyped]

from graphopt.kernels.vecmath.intrinsics import Value, fabs, select, sqrt


def library_call(name: str, arity: int = 1) -> Callable[..., Value]:
    """The C library's function of that name, in the precision of what it is called with."""

    def apply(*args: Value) -> Value:
        kind = args[0].ir.type
        symbol = name + ("f" if kind == ir.FloatType() else "")
        module = args[0].builder.module
        known = module.globals.get(symbol)
        function = known or ir.Function(module, ir.FunctionType(kind, [kind] * arity), symbol)
        function.attributes.add("nounwind")
        return Value(args[0].builder, args[0].builder.call(function, [a.ir for a in args]))

    def one(x: Value) -> Value:
        return apply(x)

    def two(x: Value, y: Value) -> Value:
        return apply(x, y)

    return one if arity == 1 else two


_cbrt, _exp, _log1p = map(library_call, ("cbrt", "exp", "log1p"))


def _sigmoid(x: Value) -> Value:
    e = _exp(-fabs(x))
    return select(x < 0.0, e, 1.0) / (1.0 + e)


def _softplus(x: Value) -> Value:
    return select(x > 0.0, x, 0.0) + _log1p(_exp(-fabs(x)))


def _rsqrt(x: Value) -> Value:
    return 1.0 / sqrt(x)


def _rcbrt(x: Value) -> Value:
    return 1.0 / _cbrt(x)


def _in_float64(emit: Callable[[Value], Value]) -> Callable[[Value], Value]:
    def rounded(x: Value) -> Value:
        return emit(x) if x.ir.type == ir.DoubleType() else emit(x.widened()).narrowed()

    return rounded


# What the library has is called in the precision asked for, the rest is composed in float64.
_LIBRARY = ("cos", "erf", "exp", "expm1", "log", "log10", "log1p", "log2", "sin", "tanh")
FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: library_call(name) for name in _LIBRARY},
    "pow": library_call("pow", 2),
    "cbrt": _in_float64(_cbrt),
    "rcbrt": _in_float64(_rcbrt),
    "rsqrt": _in_float64(_rsqrt),
    "sigmoid": _in_float64(_sigmoid),
    "softplus": _in_float64(_softplus),
}
