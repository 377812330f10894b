"""The functions that both precisions compute alike, up to the constants in `Format`.

Sums that are written `a + b` round twice where `fma` rounds once: the order of operations below is
what the error bounds rest on. Coefficients come from `fit.py`.
"""

import math
from dataclasses import dataclass

from graphopt.cached import cached_property
from graphopt.kernels.vecmath.intrinsics import (
    Value,
    clamp,
    copysign,
    fabs,
    floor,
    fma,
    horner,
    select,
    sqrt,
)

NAN, INF = math.nan, math.inf
_LIFT = 64  # a power of two that makes every subnormal number normal


@dataclass(frozen=True)
class Format:
    """What the functions need to know about a binary format. Pairs are a value and its rest."""

    fraction: int  # bits of the significand that are stored
    bias: int
    ln2: tuple[float, float]
    log10_2: tuple[float, float]
    log10_e: tuple[float, float]
    log2_e: tuple[float, float]
    root_half: int  # the bits of sqrt(1/2)
    overflow: float  # above it exp is infinite
    saturation: float  # above it tanh is 1, and below minus twice of it expm1 is -1
    exp_tail: tuple[float, ...]  # (exp(r) - 1 - r) / r**2
    log_odd: bool  # how to compute log(1 + f): by a polynomial in f/(2 + f) or in f
    log_tail: tuple[float, ...]
    erf_end: float  # above it erf is 1
    erf_tail: tuple[float, ...]  # erf(x) / x - 1 in x**2, up to 1
    log_erfc: tuple[float, ...]  # log(1 - erf(x)) from there on
    root: tuple[float, ...]  # x**(-1/3)

    @cached_property
    def magic(self) -> float:
        """Added to a small number, it leaves the nearest integer in the low bits."""
        return 1.5 * 2.0**self.fraction

    @cached_property
    def smallest(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @cached_property
    def tiny(self) -> float:
        """f(x) = x to the last bit below it, for every f with f(0) = 0 and f'(0) = 1."""
        return 2.0 ** (-self.fraction - 3)

    def power_of_two(self, biased: Value) -> Value:
        """2**(biased - bias) for a normal result; bits above the exponent are lost."""
        return (biased << self.fraction).from_bits()

    def scaled(self, y: Value, n: Value) -> Value:
        """The value of y * 2**(n - 2 * bias), rounded once even if the power is not normal."""
        half = n >> 1
        return y * self.power_of_two(half) * self.power_of_two(n - half)

    def reduce(self, x: Value, offset: int) -> tuple[Value, Value]:
        """exp(x) = 2**n * (1 + p): n + offset in the low bits of an integer, and p."""
        magic = self.magic + offset
        shifted = fma(x, self.log2_e[0], magic)
        n = shifted - magic
        r = fma(n, -self.ln2[1], fma(n, -self.ln2[0], x))
        return shifted.bits(), fma(r * r, horner(r, self.exp_tail), r)

    def exp(self, x: Value) -> Value:
        """e**x."""
        # Half of 2**n, as n may be the first power of two beyond the format; where results may be
        # subnormal, 2**_LIFT times that, and the last product rounds. For what is masked out of a
        # softmax, far below, the bits of the power are those of zero: products that underflow take
        # Intel's processors some hundred cycles.
        zero, lifted = self.bias - 1 + _LIFT, x < (3 - self.bias) * math.log(2)
        n, p = self.reduce(clamp(x, -zero * math.log(2), self.overflow), self.bias - 1)
        power = self.power_of_two(n + select(lifted, n.like(_LIFT), 0))
        return fma(p, 2.0, 2.0) * power * select(lifted, x.like(2.0**-_LIFT), 1.0)

    def exp_nonpositive(self, x: Value) -> Value:
        """e**x for x <= 0, and 0 where that is below 0.7 times the smallest normal number."""
        # At the lower end, and for what is masked out of a softmax, the bits of the power are 0's.
        low = -self.bias * math.log(2)
        n, p = self.reduce(select(x < low, low, x), self.bias)
        power = self.power_of_two(n)
        return fma(p, power, power)

    def expm1(self, x: Value) -> Value:
        """e**x - 1."""
        # Half of the result first: 2**n may be the first power of two beyond the format.
        limited = clamp(x, -2 * self.saturation, self.overflow)
        n, p = self.reduce(limited, self.bias - 1)
        scale = self.power_of_two(n)
        y = 2.0 * fma(scale, p, scale - 0.5)
        return select(fabs(x) < self.tiny, x, y)

    def tanh(self, x: Value) -> Value:
        """The hyperbolic tangent."""
        top, bottom = self._tanh_ratio(x)
        return copysign(top / bottom, x)

    def _tanh_ratio(self, x: Value) -> tuple[Value, Value]:
        """Two numbers whose quotient is tanh(|x|)."""
        # (t - e**-2r) / (t + e**-2r) with t = 2**n and 2|x| = n * log(2) + 2r: both round little.
        # What log(2) is more than its first part does not matter, as n is below 60. `half` is
        # (1 - e**-2r) / 2.
        a = fabs(x)
        a = select(a > self.saturation, self.saturation, a)
        magic = self.magic + self.bias
        shifted = fma(a, 2.0 * self.log2_e[0], magic)
        r = fma(shifted - magic, -0.5 * self.ln2[0], a)
        tail = tuple(-2.0 * c * (-2.0) ** k for k, c in enumerate(self.exp_tail))
        half = fma(r * r, horner(r, tail), r)
        t = self.power_of_two(shifted.bits())
        return fma(half, 2.0, t - 1.0), fma(half, -2.0, t + 1.0)

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + e**-x)."""
        top, bottom = self._sigmoid_ratio(x)
        return top / bottom

    def _sigmoid_ratio(self, x: Value) -> tuple[Value, Value]:
        """Two numbers whose quotient is 1 / (1 + e**-x)."""
        # t / (t + e**r) with t = 2**n and x = n * log(2) - r. All are lifted by a power of two, so
        # that t is normal where the quotient is subnormal. At the lower end its bits are zero's.
        lift = self.fraction + 2
        x = clamp(x, -(self.bias + lift) * math.log(2), 2 * self.saturation)
        magic = self.magic + (self.bias + lift)
        shifted = fma(x, self.log2_e[0], magic)
        n = shifted - magic
        r = fma(n, self.ln2[1], fma(n, self.ln2[0], -x))
        t = self.power_of_two(shifted.bits())
        return t, t + horner(r, tuple(c * 2.0**lift for c in (1.0, 1.0, *self.exp_tail)))

    def sigmoid_times_tanh(self, x: Value, y: Value) -> Value:
        """sigmoid(x) * tanh(y) by one division, which takes as long as thirty sums."""
        above, below = self._sigmoid_ratio(x)
        top, bottom = self._tanh_ratio(y)
        return copysign(above * top / (below * bottom), y)

    def log_rest(self, f: Value) -> Value:
        """log(1 + f) - f for f between sqrt(1/2) - 1 and sqrt(2) - 1."""
        square = f * f
        if not self.log_odd:
            return square * fma(f, horner(f, self.log_tail), -0.5)
        s = f / (f + 2.0)
        z = s * s
        half = 0.5 * square
        return fma(s, fma(z, horner(z, self.log_tail), half), -half)

    def exponent(self, x: Value) -> tuple[Value, Value]:
        """A positive normal number as m * 2**e: the bits of m and the number e."""
        bits = x.bits() - self.root_half + (self.bias << self.fraction)
        biased = bits >> self.fraction
        # The same trick as `magic`, backwards; AVX2 does not convert integers of 64 bits.
        unit = (self.bias + self.fraction) << self.fraction
        e = (biased | unit).from_bits() - (2.0**self.fraction + self.bias)
        return (bits & ((1 << self.fraction) - 1)) + self.root_half, e

    def normal(self, x: Value) -> tuple[Value, Value]:
        """A positive number as m * 2**e with m between sqrt(1/2) and sqrt(2)."""
        small = x < self.smallest
        m, e = self.exponent(select(small, x * 2.0**self.fraction, x))
        return m.from_bits(), e - select(small, e.like(float(self.fraction)), 0.0)

    def split(self, x: Value) -> tuple[Value, Value, Value]:
        """log(x) = e * log(2) + f + rest, for a positive number."""
        m, e = self.normal(x)
        f = m - 1.0
        return e, f, self.log_rest(f)

    @staticmethod
    def log_special(x: Value, y: Value, zero: float = 0.0) -> Value:
        """`y` with what a logarithm is at its end `zero`, below it, at infinity and at NaN."""
        y = select(x.equals(INF), x, y)
        return select(x > zero, y, select(x.equals(zero), x.like(-INF), NAN))

    def log(self, x: Value) -> Value:
        """The natural logarithm."""
        e, f, rest = self.split(x)
        return self.log_special(x, fma(e, self.ln2[0], f + fma(e, self.ln2[1], rest)))

    def _log_base(self, f: Value, rest: Value, base: tuple[float, float]) -> Value:
        return fma(f, base[0], fma(f, base[1], rest * base[0]))

    def log2(self, x: Value) -> Value:
        """The logarithm to base 2."""
        e, f, rest = self.split(x)
        return self.log_special(x, e + self._log_base(f, rest, self.log2_e))

    def log10(self, x: Value) -> Value:
        """The logarithm to base 10."""
        e, f, rest = self.split(x)
        low = fma(e, self.log10_2[1], self._log_base(f, rest, self.log10_e))
        return self.log_special(x, fma(e, self.log10_2[0], low))

    def log1p(self, x: Value) -> Value:
        """log(1 + x)."""
        _, e = self.exponent(x + 1.0)
        # 2**(2 - e), which is normal for every e; then f without the rounding error of x + 1.
        scale = self.power_of_two((self.magic + (self.bias + 2) - e).bits())
        f = fma(0.25 * x, scale, fma(scale, 0.25, -1.0))
        rest = self.log_rest(f)
        y = fma(e, self.ln2[0], f + fma(e, self.ln2[1], rest))
        return select(fabs(x) < self.tiny, x, self.log_special(x, y, -1.0))

    def softplus(self, x: Value) -> Value:
        """log(1 + e**x)."""
        t = self.exp(-fabs(x))
        high = t > math.sqrt(2) - 1
        f = select(high, fma(t, 0.5, -0.5), t)
        low = f + (self.log_rest(f) + select(high, t.like(self.ln2[1]), 0.0))
        return select(x > 0.0, x, 0.0) + (low + select(high, t.like(self.ln2[0]), 0.0))

    def rsqrt(self, x: Value) -> Value:
        """1 / sqrt(x)."""
        return 1.0 / sqrt(x)

    def erf(self, x: Value) -> Value:
        """The error function."""
        a = fabs(x)
        a = select(a > self.erf_end, self.erf_end, a)
        n, p = self.reduce(horner(a, self.log_erfc), self.bias)
        scale = self.power_of_two(n)
        high = fma(scale, -p, 1.0 - scale)
        low = fma(a, horner(a * a, self.erf_tail), a)
        return copysign(select(a < 1.0, low, high), x)

    def _thirds(self, x: Value) -> tuple[Value, Value, Value]:
        """|x| = t * 8**n: n, t and t**(-1/3)."""
        m, e = self.normal(fabs(x))
        n = fma(e, 1.0 / 3.0, self.magic) - self.magic
        rest = fma(n, -3.0, e)
        t = m * select(rest > 0.0, m.like(2.0), select(rest < 0.0, m.like(0.5), 1.0))
        up, down = m.like(2.0 ** (1 / 3)), m.like(0.5 ** (1 / 3))
        y = horner(m, self.root) * select(rest > 0.0, down, select(rest < 0.0, up, 1.0))
        # t = (1 - h) / y**3, and (1 - h)**(-1/3) by its series.
        h = fma(t * y, -(y * y), 1.0)
        return n, t, fma(y * h, fma(h, fma(h, 14 / 81, 2 / 9), 1 / 3), y)

    def cbrt(self, x: Value) -> Value:
        """The cube root."""
        n, t, y = self._thirds(x)
        square = y * y
        root = t * square
        root = fma(fma(root * root, -root, t), square * (1 / 3), root)
        root = root * self.power_of_two((n + (self.magic + self.bias)).bits())
        return select((fabs(x) > 0.0) & (fabs(x) < INF), copysign(root, x), x)

    def rcbrt(self, x: Value) -> Value:
        """1 / the cube root."""
        n, _, y = self._thirds(x)
        root = y * self.power_of_two((self.magic + self.bias - n).bits())
        return select((fabs(x) > 0.0) & (fabs(x) < INF), copysign(root, x), 1.0 / x)


def power_of_sign(x: Value, y: Value, magnitude: Value) -> Value:
    """x**y from |x|**y, with the special cases of C's pow."""
    half = y * 0.5
    whole = floor(y).equals(y)
    odd = whole & ~floor(half).equals(half)
    result = select(odd, copysign(magnitude, x), magnitude)
    result = select((x < 0.0) & (x > -INF) & ~whole, NAN, result)
    one = y.equals(0.0) | x.equals(1.0) | (x.equals(-1.0) & fabs(y).equals(INF))
    return select(one, 1.0, result)
