"""The minimax polynomials of the vector functions, computed anew from nothing but `decimal`.

`python -m graphopt.kernels.vecmath.fit` writes the coefficients that `float32.py` and `float64.py`
hold, lowest power first, each line with the largest weighted error as a power of two.
"""

import math
import sys
from collections.abc import Callable
from decimal import Decimal, getcontext, localcontext

Real = Callable[[Decimal], Decimal]

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
LN2 = Decimal("0.693147180559945309417232121458176568075500134360255254120680009493393621969694716")


def series(first: Decimal, ratio: Callable[[int], Decimal]) -> Decimal:
    """Sum `first`, `first * ratio(1)`, `first * ratio(1) * ratio(2)`, ... to full precision."""
    total = term = first
    k = 0
    while abs(term) > abs(total) * Decimal(10) ** -getcontext().prec and k < 2000:
        k += 1
        term *= ratio(k)
        total += term
    return total


def exp_tail(r: Decimal) -> Decimal:
    """(exp(r) - 1 - r) / r**2."""
    return series(Decimal("0.5"), lambda k: r / (k + 2))


def log_tail(f: Decimal) -> Decimal:
    """(log(1 + f) - f + f**2 / 2) / f**3."""
    if not f:
        return Decimal(1) / 3
    return ((1 + f).ln() - f + f * f / 2) / (f * f * f)


def atanh_tail(z: Decimal) -> Decimal:
    """(2 * atanh(s) - 2 * s) / s**3 where z = s**2."""
    if not z:
        return Decimal(2) / 3
    s = z.sqrt()
    return (((1 + s) / (1 - s)).ln() - 2 * s) / (s * z)


def atanh_second_tail(z: Decimal) -> Decimal:
    """(atanh(s) / s - 1 - z / 3) / z**2 where z = s**2."""
    return (atanh_tail(z) / 2 - Decimal(1) / 3) / z if z else Decimal(1) / 5


def log2_ratio(z: Decimal) -> Decimal:
    """2 * atanh(s) / (s * log(2)) where z = s**2."""
    return (2 + z * atanh_tail(z)) / LN2


def sin_tail(z: Decimal) -> Decimal:
    """(sin(r) - r) / r**3 where z = r**2."""
    return series(Decimal(-1) / 6, lambda k: -z / ((2 * k + 2) * (2 * k + 3)))


def cos_tail(z: Decimal) -> Decimal:
    """(cos(r) - 1 + r**2 / 2) / r**4 where z = r**2."""
    return series(Decimal(1) / 24, lambda k: -z / ((2 * k + 3) * (2 * k + 4)))


def erf(x: Decimal) -> Decimal:
    """The error function, by its series with positive terms."""
    return series(2 * x / PI.sqrt() * (-x * x).exp(), lambda k: 2 * x * x / (2 * k + 1))


def erf_tail(z: Decimal) -> Decimal:
    """erf(x) / x - 1 where z = x**2."""
    return erf(z.sqrt()) / z.sqrt() - 1 if z else 2 / PI.sqrt() - 1


def log_erfc(a: Decimal) -> Decimal:
    """log(1 - erf(a))."""
    return (1 - erf(a)).ln()


def log2_erfc(a: Decimal) -> Decimal:
    """log2(1 - erf(a))."""
    return log_erfc(a) / LN2


def erfc_argument(t: Decimal) -> Decimal:
    """The a of t = 1 / (1 + 0.4 * a)."""
    return (1 / t - 1) * Decimal("2.5")


def erfc_tail(t: Decimal) -> Decimal:
    """erfc(a) * exp(a**2) / t where t = 1 / (1 + 0.4 * a)."""
    a = erfc_argument(t)
    return (1 - erf(a)) * (a * a).exp() / t


def erfc_power(t: Decimal) -> Decimal:
    """The weight that turns an error of `erfc_tail` into one of erf."""
    a = erfc_argument(t)
    return (-a * a).exp() * t


def exp2_tail(f: Decimal) -> Decimal:
    """(2**f - 1) / f."""
    x = f * LN2
    return LN2 * (1 + x * exp_tail(x))


def rcbrt(m: Decimal) -> Decimal:
    """1 over the cube root of a positive number."""
    return (m.ln() / -3).exp()


def cbrt(m: Decimal) -> Decimal:
    """The weight that turns an error of `rcbrt` into a relative one."""
    return (m.ln() / 3).exp()


def solve(rows: list[list[Decimal]]) -> list[Decimal]:
    """Solve a linear system given as rows with the right side last, by elimination with pivots."""
    n = len(rows)
    for i in range(n):
        pivot = max(range(i, n), key=lambda j: abs(rows[j][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for j in range(i + 1, n):
            scale = rows[j][i] / rows[i][i]
            if scale:
                rows[j] = [b - scale * a for a, b in zip(rows[i], rows[j], strict=True)]
    solution = [Decimal(0)] * n
    for i in reversed(range(n)):
        known = sum((rows[i][j] * solution[j] for j in range(i + 1, n)), Decimal(0))
        solution[i] = (rows[i][n] - known) / rows[i][i]
    return solution


def minimax(
    target: Real, weight: Real, low: float, high: float, degree: int
) -> tuple[list[Decimal], Decimal]:
    """The polynomial whose largest weighted error is least, by Remez's exchange, and that error."""
    a, b = Decimal(low), Decimal(high)
    count = 24 * (degree + 2) + 1
    grid = [
        (a + b) / 2 - (b - a) / 2 * Decimal(math.cos(math.pi * i / (count - 1)))
        for i in range(count)
    ]
    values = [(x, target(x), weight(x)) for x in grid]
    chosen = [round((i + 0.5) * (count - 1) / (degree + 2)) for i in range(degree + 2)]
    coefficients: list[Decimal] = []
    worst = Decimal(0)
    for _ in range(12):
        rows = []
        for sign, i in enumerate(chosen):
            x, y, w = values[i]
            rows.append([w * x**k if k else w for k in range(degree + 1)] + [(-1) ** sign, w * y])
        *coefficients, _level = solve([[Decimal(v) for v in row] for row in rows])
        errors = []
        for x, y, w in values:
            p = Decimal(0)
            for c in reversed(coefficients):
                p = p * x + c
            errors.append(w * (p - y))
        worst = max(abs(e) for e in errors)
        # The largest error of each run of one sign; then the runs at the ends that are too many go.
        runs: list[int] = []
        for i, e in enumerate(errors):
            if runs and (e > 0) == (errors[runs[-1]] > 0):
                if abs(e) > abs(errors[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > degree + 2:
            runs.pop(0 if abs(errors[runs[0]]) < abs(errors[runs[-1]]) else -1)
        if len(runs) < degree + 2 or runs == chosen:
            break
        chosen = runs
    return coefficients, worst


HALF_LN2 = 0.3466 * 1.001
ROOT = 2**0.5
QUARTER_PI = (math.pi / 4 * 1.02) ** 2
ATANH = ((ROOT - 1) / (ROOT + 1)) ** 2 * 1.0001


def one(_: Decimal) -> Decimal:
    """The weight of an absolute error."""
    return Decimal(1)


def erfc(a: Decimal) -> Decimal:
    """The weight that turns an error of log(erfc) into one of erf."""
    return 1 - erf(a)


# name: the function, the weight, the interval, the degrees by name of the table they end up in
FITS: dict[str, tuple[Real, Real, float, float, dict[str, int]]] = {
    "exp": (exp_tail, abs, -HALF_LN2, HALF_LN2, {"float32": 4, "float32 pow": 5, "float64": 9}),
    "log": (log_tail, lambda f: f * f, 0.5 * ROOT - 1, ROOT - 1, {"float32": 7}),
    "atanh": (atanh_tail, lambda z: z, 0, ATANH, {"float64": 6}),
    "atanh second": (atanh_second_tail, lambda z: z * z, 0, ATANH, {"float64 pow": 7}),
    "log2": (log2_ratio, one, 0, ATANH, {"float32 pow": 4}),
    "sin": (sin_tail, lambda z: z, 0, QUARTER_PI, {"float32": 3, "float64": 5}),
    "cos": (cos_tail, lambda z: z * z, 0, QUARTER_PI, {"float32": 2, "float64": 5}),
    "erf": (erf_tail, one, 0, 1, {"float32": 6, "float64": 12}),
    "log2_erfc": (log2_erfc, erfc, 0, 4, {"float32": 8}),
    "erfc_tail": (erfc_tail, erfc_power, 1 / 2.6, 1, {"float32": 5}),
    "exp2": (exp2_tail, abs, -0.5, 0.5, {"float32": 5}),
    "rcbrt": (rcbrt, cbrt, 0.5 * ROOT, ROOT, {"float32": 3, "float64": 5}),
    "erfc32": (log_erfc, erfc, 1, 4, {"float32": 5}),
    "erfc64": (log_erfc, erfc, 1, 6, {"float64": 16}),
}


def main() -> None:
    """Write every table to standard output."""
    with localcontext() as context:
        context.prec = 70
        for name, (target, weight, low, high, degrees) in FITS.items():
            for table, degree in degrees.items():
                coefficients, worst = minimax(target, weight, low, high, degree)
                digits = 10 if table == "float32" and name not in ("sin", "cos") else 17
                text = ",\n    ".join(f"{c:.{digits - 1}e}" for c in coefficients)
                power = float(worst.ln() / LN2)
                sys.stdout.write(f"# {name}, {table}: 2**{power:.1f}\n(\n    {text},\n)\n")


if __name__ == "__main__":
    main()
