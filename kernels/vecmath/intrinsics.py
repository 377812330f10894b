"""Expressions that become LLVM instructions.

A function of this package is written once with `Value`s. Called from a kernel, it appends its
instructions to the kernel, and LLVM sees straight-line code that it vectorises. Nothing here
branches, reads memory or calls libm.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # it has no types of its own

from graphopt.kernels.lowering import number

_INTEGERS = {ir.FloatType(): ir.IntType(32), ir.DoubleType(): ir.IntType(64)}
_FLOATS = {integer: real for real, integer in _INTEGERS.items()}

# A kernel compiled with `fastmath` puts its flags on every float instruction that has none. These
# flags allow nothing where they stand; they keep the arithmetic below exactly as it is written.
_INERT = {"fdiv": ("contract",)}
_INERT_ELSEWHERE = ("arcp",)


class Value:
    """A float, integer or truth value that LLVM will compute; operators append instructions.

    Python numbers beside a value become constants of its type, floats rounded to it.
    """

    __slots__ = ("builder", "ir")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.ir = value

    def like(self, other: "Value | float") -> "Value":
        """`other` as a value of this one's type."""
        if isinstance(other, Value):
            return other
        return Value(self.builder, number(self.ir.type, other))

    def _binary(self, operation: str, left: "Value | float", right: "Value | float") -> "Value":
        a, b = self.like(left), self.like(right)
        if a.ir.type in _INTEGERS:
            operation = "f" + operation
            flags = _INERT.get(operation, _INERT_ELSEWHERE)
            return Value(self.builder, getattr(self.builder, operation)(a.ir, b.ir, flags=flags))
        return Value(self.builder, getattr(self.builder, operation)(a.ir, b.ir))

    def _compare(self, operation: str, other: "Value | float") -> "Value":
        a, b = self.ir, self.like(other).ir
        if self.ir.type in _INTEGERS:
            condition = self.builder.fcmp_ordered(operation, a, b, flags=_INERT_ELSEWHERE)
        else:
            condition = self.builder.icmp_signed(operation, a, b)
        return Value(self.builder, condition)

    def __add__(self, other: "Value | float") -> "Value":
        return self._binary("add", self, other)

    def __radd__(self, other: float) -> "Value":
        return self._binary("add", other, self)

    def __sub__(self, other: "Value | float") -> "Value":
        return self._binary("sub", self, other)

    def __rsub__(self, other: float) -> "Value":
        return self._binary("sub", other, self)

    def __mul__(self, other: "Value | float") -> "Value":
        return self._binary("mul", self, other)

    def __rmul__(self, other: float) -> "Value":
        return self._binary("mul", other, self)

    def __truediv__(self, other: "Value | float") -> "Value":
        return self._binary("div", self, other)

    def __rtruediv__(self, other: float) -> "Value":
        return self._binary("div", other, self)

    def __neg__(self) -> "Value":
        return Value(self.builder, self.builder.fneg(self.ir))

    def __and__(self, other: "Value | int") -> "Value":
        return Value(self.builder, self.builder.and_(self.ir, self.like(other).ir))

    def __or__(self, other: "Value | int") -> "Value":
        return Value(self.builder, self.builder.or_(self.ir, self.like(other).ir))

    def __xor__(self, other: "Value | int") -> "Value":
        return Value(self.builder, self.builder.xor(self.ir, self.like(other).ir))

    def __invert__(self) -> "Value":
        return Value(self.builder, self.builder.not_(self.ir))

    def __lshift__(self, count: int) -> "Value":
        return Value(self.builder, self.builder.shl(self.ir, self.like(count).ir))

    def __rshift__(self, count: int) -> "Value":
        """Shift zeros in from the left: AVX2 has no arithmetic shift of 64 bits."""
        return Value(self.builder, self.builder.lshr(self.ir, self.like(count).ir))

    def __lt__(self, other: "Value | float") -> "Value":
        return self._compare("<", other)

    def __le__(self, other: "Value | float") -> "Value":
        return self._compare("<=", other)

    def __gt__(self, other: "Value | float") -> "Value":
        return self._compare(">", other)

    def __ge__(self, other: "Value | float") -> "Value":
        return self._compare(">=", other)

    def equals(self, other: "Value | float") -> "Value":
        """Whether both are equal; never for NaN."""
        return self._compare("==", other)

    def bits(self) -> "Value":
        """The bits of a float as an integer of its size."""
        return Value(self.builder, self.builder.bitcast(self.ir, _INTEGERS[self.ir.type]))

    def from_bits(self) -> "Value":
        """The float of these bits."""
        return Value(self.builder, self.builder.bitcast(self.ir, _FLOATS[self.ir.type]))

    def widened(self) -> "Value":
        """A float32 as float64."""
        return Value(self.builder, self.builder.fpext(self.ir, ir.DoubleType()))

    def narrowed(self) -> "Value":
        """A float64 rounded to float32."""
        return Value(self.builder, self.builder.fptrunc(self.ir, ir.FloatType()))


def call(name: str, first: Value, *others: Value | float) -> Value:
    """Call LLVM's intrinsic `name` with arguments of one type."""
    arguments = [first.ir, *(first.like(other).ir for other in others)]
    kind = first.ir.type
    signature = ir.FunctionType(kind, [kind] * len(arguments))
    function = first.builder.module.declare_intrinsic(name, (kind,), signature)
    return Value(first.builder, first.builder.call(function, arguments))


def fma(a: Value, b: Value | float, c: Value | float) -> Value:
    """The value of a * b + c, rounded once."""
    return call("llvm.fma", a, b, c)


def select(condition: Value, a: Value | float, b: Value | float) -> Value:
    """`a` where the condition holds and `b` elsewhere; at least one of them is a `Value`."""
    typed = a if isinstance(a, Value) else b
    if not isinstance(typed, Value):
        raise TypeError(f"select expects a Value on at least one side, found {a!r} and {b!r}.")
    yes, no = typed.like(a), typed.like(b)
    return Value(condition.builder, condition.builder.select(condition.ir, yes.ir, no.ir))


def fabs(x: Value) -> Value:
    """|x|."""
    return call("llvm.fabs", x)


def copysign(x: Value, y: Value) -> Value:
    """|x| with the sign of y."""
    return call("llvm.copysign", x, y)


def sqrt(x: Value) -> Value:
    """The square root, correctly rounded."""
    return call("llvm.sqrt", x)


def rint(x: Value) -> Value:
    """The nearest integer, the even one of two."""
    return call("llvm.rint", x)


def floor(x: Value) -> Value:
    """The largest integer that is not above x."""
    return call("llvm.floor", x)


def ceil(x: Value) -> Value:
    """The smallest integer that is not below x."""
    return call("llvm.ceil", x)


def trunc(x: Value) -> Value:
    """The integer part."""
    return call("llvm.trunc", x)


def maximum(x: Value, y: Value) -> Value:
    """The larger one; NaN if either is NaN, as numpy.maximum."""
    # Comparing is two instructions fewer than llvm.maximum, which also orders the two zeros.
    larger = select(x > y, x, y)
    return select(_is_nan(x), x, larger)


def minimum(x: Value, y: Value) -> Value:
    """The smaller one; NaN if either is NaN, as numpy.minimum."""
    smaller = select(x < y, x, y)
    return select(_is_nan(x), x, smaller)


def _is_nan(x: Value) -> Value:
    return Value(x.builder, x.builder.fcmp_unordered("uno", x.ir, x.ir, flags=_INERT_ELSEWHERE))


def clamp(x: Value, low: float, high: float) -> Value:
    """`x` between two constants; NaN stays NaN."""
    x = select(x < low, low, x)
    return select(x > high, high, x)


def horner(x: Value, coefficients: tuple[float, ...]) -> Value:
    """The polynomial with these coefficients, lowest power first."""
    result = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


INSTRUCTIONS: dict[str, Callable[..., Value]] = {
    "abs": fabs,
    "ceil": ceil,
    "copysign": copysign,
    "floor": floor,
    "maximum": maximum,
    "minimum": minimum,
    "rint": rint,
    "sqrt": sqrt,
    "trunc": trunc,
}
