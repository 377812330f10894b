"""erf, its inverse, gamma and log-gamma, value by value from the standard library.

Arrays in, float64 arrays of the same shape out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from graphopt.backend.reference_ops.call import Array

_NORMAL = NormalDist()


def _by_value(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """The function applied to each value in float64."""

    def apply(x: Array) -> Array:
        values = [function(float(v)) for v in x.ravel()]
        return np.array(values, np.float64).reshape(x.shape)

    return apply


def _erfinv(y: float) -> float:
    """The x with erf(x) == y: infinite at -1 and 1, NaN beyond."""
    if math.isnan(y) or abs(y) > 1:
        return math.nan
    if abs(y) == 1:
        return math.copysign(math.inf, y)
    if abs(y) < 1e-4:
        # The series: the quantile below would lose the digits of 1 + y.
        return math.sqrt(math.pi) / 2 * (y + math.pi / 12 * y**3)
    x = _NORMAL.inv_cdf((1 + y) / 2) / math.sqrt(2)
    slope = 2 / math.sqrt(math.pi) * math.exp(-x * x)
    return x - (math.erf(x) - y) / slope if slope else x


def _gamma(x: float) -> float:
    """The gamma function: NaN at the negative integers, infinite at zero and past 171."""
    if x == 0:
        return math.copysign(math.inf, x)
    if x < 0 and (x == math.floor(x)):
        return math.nan
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf


def _gammaln(x: float) -> float:
    """Log |gamma(x)|: infinite at zero and at the negative integers."""
    if x <= 0 and x == math.floor(x):
        return math.inf
    return math.lgamma(x)


erf = _by_value(math.erf)
erfinv = _by_value(_erfinv)
gamma = _by_value(_gamma)
gammaln = _by_value(_gammaln)
