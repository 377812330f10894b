"""The functions in float64."""

from collections.abc import Callable

from graphopt.kernels.vecmath.elementary import NAN, Format, power_of_sign
from graphopt.kernels.vecmath.intrinsics import Value, clamp, fabs, fma, horner, select

FORMAT = Format(
    fraction=52,
    bias=1023,
    ln2=(0.6931471805599453, 2.3190468138462996e-17),
    log10_2=(0.3010299956639812, -2.8037281277851704e-18),
    log10_e=(0.4342944819032518, 1.098319650216765e-17),
    log2_e=(1.4426950408889634, 2.0355273740931033e-17),
    root_half=0x3FE6A09E667F3BCD,
    overflow=710.0,
    saturation=20.0,
    exp_tail=(
        5.0000000000000056e-1,
        1.6666666666666686e-1,
        4.1666666666572894e-2,
        8.3333333333144000e-3,
        1.3888888932635657e-3,
        1.9841269903476754e-4,
        2.4801504119731719e-5,
        2.7557227531647081e-6,
        2.7626462308034622e-7,
        2.5114613304903273e-8,
    ),
    log_odd=True,
    log_tail=(
        6.6666666666667344e-1,
        3.9999999999414372e-1,
        2.8571428742471623e-1,
        2.2222198563205484e-1,
        1.8183564906434073e-1,
        1.5314034306221839e-1,
        1.4796124804493937e-1,
    ),
    erf_end=6.0,
    erf_tail=(
        1.2837916709551257e-1,
        -3.7612638903183748e-1,
        1.1283791670954884e-1,
        -2.6866170645077871e-2,
        5.2239776248283892e-3,
        -8.5483269814234624e-4,
        1.2055331132892125e-4,
        -1.4925595770909825e-5,
        1.6461008460771013e-6,
        -1.6350396069263641e-7,
        1.4660327819316619e-8,
        -1.1374952579192629e-9,
        5.9606803397280988e-11,
    ),
    log_erfc=(
        -1.0819055662382585e-6,
        -1.1283685478801866e0,
        -6.3666826037984504e-1,
        -1.0263591518466341e-1,
        1.8862353462451106e-2,
        5.8791938010225387e-4,
        -2.1024684356172199e-3,
        9.2266137432461095e-4,
        -2.3220073095567502e-4,
        2.8688602339997063e-5,
        3.3728964077656976e-6,
        -2.6100687450690015e-6,
        6.7525096871504100e-7,
        -1.0641518486881485e-7,
        1.0724480150155103e-8,
        -6.4095894788935602e-10,
        1.7400070078070995e-11,
    ),
    root=(
        1.9991739332869926e0,
        -2.4859354438794557e0,
        2.7922401164007995e0,
        -1.8981597366486518e0,
        7.0075143620915036e-1,
        -1.0806645866962641e-1,
    ),
)

SIN = (
    -1.6666666666666623e-1,
    8.3333333333200412e-3,
    -1.9841269827855650e-4,
    2.7557312999586122e-6,
    -2.5050647768476741e-8,
    1.5890306551582304e-10,
)
COS = (
    4.1666666666666582e-2,
    -1.3888888888870917e-3,
    2.4801587287421475e-5,
    -2.7557313742999144e-7,
    2.0875638847363674e-9,
    -1.1355207040609242e-11,
)
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
TWO_OVER_PI = 0.6366197723675814
LARGEST_ANGLE = 2.0**47  # up to it the multiple of pi/2 is found to 1/64
THIRD = (0.3333333333333333, 1.850371707708594e-17)
TWICE_LOG2_E = (2.8853900817779268, 4.0710547481862066e-17)
ATANH = (
    1.9999999999999989e-1,
    1.4285714285722555e-1,
    1.1111111108768271e-1,
    9.0909094351561813e-2,
    7.6922784353931168e-2,
    6.6681587189326895e-2,
    5.8374089810200352e-2,
    5.9945093571126328e-2,
)


def reduce_angle(x: Value) -> tuple[Value, Value]:
    """The n and r of x = n * pi/2 + r, |r| < 0.8, n in the low bits; NaN beyond `LARGEST_ANGLE`."""
    x = select(fabs(x) <= LARGEST_ANGLE, x, NAN)
    shifted = fma(x, TWO_OVER_PI, FORMAT.magic)
    n = shifted - FORMAT.magic
    # Cody and Waite: the first step is exact since |n| < 2**53, the others round what is left.
    r = fma(n, -HALF_PI[0], x)
    return shifted.bits(), fma(n, -HALF_PI[2], fma(n, -HALF_PI[1], r))


def wave(
    n: Value,
    r: Value,
    sin_tail: tuple[float, ...],
    cos_tail: tuple[float, ...],
    x: Value | None = None,
) -> Value:
    """sin(n * pi/2 + r), which is `x` where that is tiny."""
    z = r * r
    odd = fma(r * z, horner(z, sin_tail), r)
    even = fma(z * z, horner(z, cos_tail), fma(z, -0.5, 1.0))
    y = select((n & 1).equals(0), odd, even)
    y = (y.bits() ^ ((n & 2) << 62)).from_bits()
    return y if x is None else select(fabs(x) < FORMAT.tiny, x, y)


def sin(x: Value) -> Value:
    """The sine; NaN beyond `LARGEST_ANGLE`."""
    n, r = reduce_angle(x)
    return wave(n, r, SIN, COS, x)


def cos(x: Value) -> Value:
    """The cosine; NaN beyond `LARGEST_ANGLE`."""
    n, r = reduce_angle(x)
    return wave(n + 1, r, SIN, COS)


def power(x: Value, y: Value) -> Value:
    """x**y."""
    a = fabs(x)
    m, e = FORMAT.normal(a)
    # Pairs from here on, each the unrounded sum of a number and its rest: 745 times the error of
    # the logarithm is the error of the result. s = (m - 1) / (m + 1), with one division.
    d = m + 1.0
    inverse = 1.0 / d
    s = (m - 1.0) * inverse
    s_low = (fma(-s, d, m - 1.0) - s * (m - (d - 1.0))) * inverse
    z = s * s
    z_low = fma(s + s, s_low, fma(s, s, -z))
    # t = (atanh(s) / s - 1) / z = 1/3 + z/5 + ...
    q = z * horner(z, ATANH)
    t = q + THIRD[0]
    t_low = (THIRD[0] - t) + q + THIRD[1]
    u = z * t
    u_low = fma(z, t, -u) + fma(z, t_low, z_low * t)
    v = s * u
    v_low = fma(s, u, -v) + fma(s, u_low, s_low * u)
    w = s + v
    w_low = (s - w) + v + (s_low + v_low)
    # log2(a) = e + 2 * atanh(s) * log2(e)
    c = w * TWICE_LOG2_E[0]
    c_low = fma(w, TWICE_LOG2_E[0], -c) + fma(w, TWICE_LOG2_E[1], w_low * TWICE_LOG2_E[0])
    g = e + c
    g_low = (e - g) + c + c_low
    g = FORMAT.log_special(a, g)
    p = y * g
    p_low = select(fabs(p) < 1100.0, fma(y, g, -p) + y * g_low, 0.0)
    p = clamp(p, -1100.0, 1100.0)
    magic = FORMAT.magic + 2 * FORMAT.bias
    shifted = p + magic
    rest = p - (shifted - magic)
    r = fma(rest, FORMAT.ln2[0], fma(rest, FORMAT.ln2[1], p_low * FORMAT.ln2[0]))
    result = fma(r * r, horner(r, FORMAT.exp_tail), r) + 1.0
    result = FORMAT.scaled(result, shifted.bits())
    return power_of_sign(x, y, result)


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
