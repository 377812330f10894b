"""The functions in float32; angles and powers are computed in float64 inside."""

from collections.abc import Callable

from graphopt.kernels.vecmath import float64
from graphopt.kernels.vecmath.elementary import Format, power_of_sign
from graphopt.kernels.vecmath.intrinsics import Value, clamp, fabs, fma, horner, select

FORMAT = Format(
    fraction=23,
    bias=127,
    ln2=(0.6931471824645996, -1.9046542121259336e-09),
    log10_2=(0.3010300099849701, -1.432098883924482e-08),
    log10_e=(0.4342944920063019, -1.0103049952192578e-08),
    log2_e=(1.4426950216293335, 1.925963033500011e-08),
    root_half=0x3F3504F3,
    overflow=89.0,
    saturation=10.0,
    exp_tail=(
        5.000000062e-1,
        1.666654249e-1,
        4.166628142e-2,
        8.366650645e-3,
        1.394650833e-3,
    ),
    log_odd=False,
    log_tail=(
        3.333331672e-1,
        -2.500081057e-1,
        2.000228693e-1,
        -1.662454928e-1,
        1.418117962e-1,
        -1.312878807e-1,
        1.288172259e-1,
        -7.859602996e-2,
    ),
    erf_end=4.0,
    erf_tail=(
        1.283791659e-1,
        -3.761262714e-1,
        1.128360018e-1,
        -2.685444464e-2,
        5.189535192e-3,
        -8.020839008e-4,
        7.889110474e-5,
    ),
    log_erfc=(
        -2.672209149e-3,
        -1.117436650e0,
        -6.544915280e-1,
        -8.863240740e-2,
        1.477753293e-2,
        -1.150346418e-3,
    ),
    root=(
        1.730706588e0,
        -1.285721430e0,
        7.133295295e-1,
        -1.585360454e-1,
    ),
)

SIN = (
    -1.6666666637349075e-1,
    8.3333288902022592e-3,
    -1.9839176182912726e-4,
    2.7168106617216765e-6,
)
COS = (
    4.1666644377501648e-2,
    -1.3887242726219237e-3,
    2.4423887987922823e-5,
)
EXP = (
    5.0000000466787903e-1,
    1.6666666818699290e-1,
    4.1666353447985824e-2,
    8.3332726673077052e-3,
    1.3941110441975561e-3,
    1.9914383582277004e-4,
)
EXP2 = (
    6.931472062e-1,
    2.402265135e-1,
    5.550327793e-2,
    9.618003554e-3,
    1.340027006e-3,
    1.547637841e-4,
)
LOG2_ERFC = (
    2.169089078e-8,
    -1.627909327e0,
    -9.184097854e-1,
    -1.485068223e-1,
    2.830231889e-2,
    -8.256922086e-4,
    -1.460047309e-3,
    4.368388569e-4,
    -4.433986007e-5,
)
ERFC_TAIL = (
    2.319223246e-1,
    1.618223539e-1,
    4.682766355e-1,
    -3.709103673e-1,
    7.091484727e-1,
    -2.002594470e-1,
)
LOG2 = (
    2.8853900817901410e0,
    9.6179667328159324e-1,
    5.7708359535285094e-1,
    4.1167214479751236e-1,
    3.4074000063805478e-1,
)


def sin(x: Value) -> Value:
    """The sine; NaN beyond `float64.LARGEST_ANGLE`."""
    n, r = float64.reduce_angle(x.widened())
    # The conversion would lose nothing: sin(x) is x below the smallest normal number.
    return float64.wave(n, r, SIN, COS, x.widened()).narrowed()


def cos(x: Value) -> Value:
    """The cosine; NaN beyond `float64.LARGEST_ANGLE`."""
    n, r = float64.reduce_angle(x.widened())
    return float64.wave(n + 1, r, SIN, COS).narrowed()


def power(x: Value, y: Value) -> Value:
    """x**y."""
    wide = float64.FORMAT
    a = fabs(x).widened()
    m, e = wide.exponent(a)
    m = m.from_bits()
    s = (m - 1.0) / (m + 1.0)
    logarithm = wide.log_special(a, fma(s, horner(s * s, LOG2), e))
    exponent = clamp(logarithm * y.widened(), -160.0, 160.0)
    magic = wide.magic + wide.bias
    shifted = exponent + magic
    r = (exponent - (shifted - magic)) * wide.ln2[0]
    result = fma(r * r, horner(r, EXP), r + 1.0) * wide.power_of_two(shifted.bits())
    return power_of_sign(x, y, result.narrowed())


def one_plus_erf(x: Value) -> Value:
    """1 + erf(x), off by 1.5e-7 at most: less work than erf and a sum."""
    # 2**p is erfc(|x|). Far out 2**-127 has the bits of zero.
    p = horner(fabs(x), LOG2_ERFC)
    p = select(p < -127.0, -127.0, p)
    magic = FORMAT.magic + FORMAT.bias
    shifted = p + magic
    rest = p - (shifted - magic)
    tail = fma(rest, horner(rest, EXP2), 1.0) * FORMAT.power_of_two(shifted.bits())
    return select(x < 0.0, tail, 2.0 - tail)


def one_plus_erf_by(x: Value, power: Value) -> Value:
    """1 + erf(x) where `power` is e**-(x*x), off by 3.6e-7 at most."""
    # Hastings' form, erfc(a) = e**-(a*a) * t * P(t) with t = 1 / (1 + 0.4 * a).
    t = 1.0 / fma(fabs(x), 0.4, 1.0)
    tail = power * (t * horner(t, ERFC_TAIL))
    return select(x < 0.0, tail, 2.0 - tail)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": FORMAT.exp,
    "expm1": FORMAT.expm1,
    "log": FORMAT.log,
    "log2": FORMAT.log2,
    "log10": FORMAT.log10,
    "log1p": FORMAT.log1p,
    "tanh": FORMAT.tanh,
    "sigmoid": FORMAT.sigmoid,
    "erf": FORMAT.erf,
    "softplus": FORMAT.softplus,
    "sin": sin,
    "cos": cos,
    "pow": power,
    "rsqrt": FORMAT.rsqrt,
    "cbrt": FORMAT.cbrt,
    "rcbrt": FORMAT.rcbrt,
}
