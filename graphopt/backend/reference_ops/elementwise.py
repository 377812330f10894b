"""Operators of one array that act on each value by itself.

Shapes stay. The dtype stays too, unless the operator is a cast: MXNet keeps integers integers, so
`exp` of int32 is the exponential cut to an integer. Everything is computed in float64 and rounded
once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphopt.backend.reference_ops import special
from graphopt.backend.reference_ops.call import Array, Call, Operator, Outputs, Table, narrow, wide

# MXNet converts angles with factors in float32, for arrays of every dtype.
_DEGREES = float(np.float32(180) / np.float32(np.pi))
_RADIANS = float(np.float32(np.pi) / np.float32(180))
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def unary(function: Callable[[Array], Array]) -> Operator:
    """The operator that applies a float64 function and keeps the dtype."""

    def run(call: Call) -> Outputs:
        with np.errstate(all="ignore"):
            return [narrow(function(wide(call.x)), call.x.dtype)]

    return run


def exact(function: Callable[[Array], Array]) -> Operator:
    """The operator that applies a function in the array's own dtype."""

    def run(call: Call) -> Outputs:
        with np.errstate(all="ignore"):
            return [np.array(function(call.x), call.x.dtype)]

    return run


def sigmoid(x: Array) -> Array:
    """The logistic function of a float64 array."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-x)))


def softrelu(x: Array) -> Array:
    """log(1 + exp(x)) of a float64 array; MXNet returns x itself above 20."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _round_half_away(x: Array) -> Array:
    """C's round: ties go away from zero, where numpy's go to even."""
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _round_half_down(x: Array) -> Array:
    """MXNet's rint: ties go down, unlike C's and numpy's."""
    low, high = np.floor(x), np.ceil(x)
    return np.where(x - low <= high - x, low, high)


def _sign(x: Array) -> Array:
    """-1, 0 or 1; the sign of NaN is 0."""
    return np.where(np.isnan(x), 0, np.sign(x))


def _gelu(x: Array) -> Array:
    return np.asarray(x * (1 + special.erf(x / np.sqrt(2))) / 2)


def _hard_sigmoid(call: Call) -> Outputs:
    """Shape and dtype stay; integers are refused by MXNet."""
    alpha, beta = call.number("alpha", 0.2), call.number("beta", 0.5)
    return [narrow(np.clip(alpha * wide(call.x) + beta, 0, 1), call.x.dtype)]


def _smooth_l1(call: Call) -> Outputs:
    """Quadratic within 1 / scalar², linear beyond."""
    x, square = wide(call.x), call.number("scalar", 1.0) ** 2
    linear = np.abs(x) - 0.5 / square
    return [narrow(np.where(np.abs(x) > 1 / square, linear, 0.5 * x * x * square), call.x.dtype)]


def _clip(call: Call) -> Outputs:
    """The bounds are rounded to the dtype first: an int32 array is clipped by integers."""
    low, high = (narrow(np.array(call.number(n)), call.x.dtype) for n in ("a_min", "a_max"))
    # The upper one first, as MXNet asks: bounds may be in the wrong order.
    return [np.where(call.x > high, high, np.where(call.x < low, low, call.x))]


def _activation(call: Call) -> Outputs:
    """Activation: relu, sigmoid, tanh, softrelu or softsign."""
    kind = call.text("act_type")
    if kind not in _ACTIVATIONS:
        raise call.unsupported(f"with act_type={kind!r}")
    return _ACTIVATIONS[kind](call)


def _leaky_relu(call: Call) -> Outputs:
    """LeakyReLU; the second input of prelu is one slope, or one per channel (axis 1).

    rrelu takes the middle of its bounds, as MXNet does outside training. Its second output
    holds the slopes drawn in training; outside it MXNet leaves it unwritten, and here it is zeros.
    """
    kind, x = call.text("act_type", "leaky"), wide(call.x)
    below = np.minimum(x, 0)
    if kind == "leaky":
        out = np.where(x > 0, x, call.number("slope", 0.25) * x)
    elif kind == "elu":
        out = np.where(x > 0, x, call.number("slope", 0.25) * np.expm1(below))
    elif kind == "selu":
        out = _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(below))
    elif kind == "gelu":
        out = _gelu(x)
    elif kind == "prelu":
        out = np.where(x > 0, x, _along_channels(wide(call.inputs[1]), x.ndim) * x)
    elif kind == "rrelu" and not call.training:
        slope = (call.number("lower_bound", 0.125) + call.number("upper_bound", 0.334)) / 2
        out = np.where(x > 0, x, slope * x)
    else:
        raise call.unsupported(f"with act_type={kind!r}" + " in training" * call.training)
    mask = [np.zeros_like(call.x)] if kind == "rrelu" else []
    return [narrow(out, call.x.dtype), *mask]


def _along_channels(slope: Array, ndim: int) -> Array:
    """A vector shaped so that it broadcasts along axis 1; other shapes broadcast as they are."""
    if slope.ndim == 1 and ndim > 1:
        return slope.reshape((1, -1) + (1,) * (ndim - 2))
    return slope


def _cast(call: Call) -> Outputs:
    """Floats are cut towards zero, and integers wrap, as in C."""
    target = call.dtype(call.x.dtype)
    if call.x.dtype.kind == "f" and target.kind in "iu":
        # Through int64: numpy's own conversion of an out-of-range float to uint8 is undefined.
        return [narrow(narrow(call.x, np.int64), target)]
    return [narrow(call.x, target)]


def _amp_cast(call: Call) -> Outputs:
    """Floats alone are cast."""
    return _cast(call) if call.x.dtype.kind == "f" else [call.x.copy()]


def _amp_multicast(call: Call) -> Outputs:
    """All floats in the widest of their dtypes, or in the narrowest with cast_narrow."""
    floats = [x.dtype for x in call.inputs if x.dtype.kind == "f"]
    by_width = sorted(floats, key=lambda d: d.itemsize)
    target = by_width[0 if call.flag("cast_narrow") else -1] if floats else None
    return [narrow(x, target) if x.dtype.kind == "f" else x.copy() for x in call.inputs]


def _quadratic(call: Call) -> Outputs:
    """The polynomial a x² + b x + c."""
    x, (a, b, c) = wide(call.x), (call.number(name, 0.0) for name in "abc")
    return [narrow(a * x * x + b * x + c, call.x.dtype)]


def _dropout(call: Call) -> Outputs:
    """The input itself: outside training MXNet drops nothing.

    Raises:
        UnsupportedOp: in training, or with mode="always": the result is random.
    """
    if call.training or call.text("mode", "training") == "always":
        raise call.unsupported("in training, where its result is random")
    return [call.x]


def _identity(call: Call) -> Outputs:
    return [call.x]


_ACTIVATIONS: Table = {
    "relu": exact(lambda x: np.maximum(x, 0)),
    "sigmoid": unary(sigmoid),
    "tanh": unary(np.tanh),
    "softrelu": unary(softrelu),
    "softsign": unary(lambda x: x / (1 + np.abs(x))),
}

TABLE: Table = {
    **{name: _ACTIVATIONS[name] for name in ("relu", "sigmoid", "tanh", "softsign")},
    "Activation": _activation,
    "BlockGrad": _identity,
    "Cast": _cast,
    "Dropout": _dropout,
    "LeakyReLU": _leaky_relu,
    "MakeLoss": _identity,
    "_contrib_gradientmultiplier": _identity,
    "_contrib_quadratic": _quadratic,
    "_contrib_round_ste": exact(_round_half_away),
    "_contrib_sign_ste": exact(_sign),
    "_copy": _identity,
    "_identity_with_attr_like_rhs": _identity,
    "abs": exact(np.abs),
    "amp_cast": _amp_cast,
    "amp_multicast": _amp_multicast,
    "arccos": unary(np.arccos),
    "arccosh": unary(np.arccosh),
    "arcsin": unary(np.arcsin),
    "arcsinh": unary(np.arcsinh),
    "arctan": unary(np.arctan),
    "arctanh": unary(np.arctanh),
    "cast": _cast,
    "cbrt": unary(np.cbrt),
    "ceil": exact(np.ceil),
    "clip": _clip,
    "cos": unary(np.cos),
    "cosh": unary(np.cosh),
    "degrees": unary(lambda x: x * _DEGREES),
    "erf": unary(special.erf),
    "erfinv": unary(special.erfinv),
    "exp": unary(np.exp),
    "expm1": unary(np.expm1),
    "fix": exact(np.trunc),
    "floor": exact(np.floor),
    "gamma": unary(special.gamma),
    "gammaln": unary(special.gammaln),
    "hard_sigmoid": _hard_sigmoid,
    "identity": _identity,
    "log": unary(np.log),
    "log10": unary(np.log10),
    "log1p": unary(np.log1p),
    "log2": unary(np.log2),
    "logical_not": exact(np.logical_not),
    "make_loss": _identity,
    "negative": exact(np.negative),
    "radians": unary(lambda x: x * _RADIANS),
    "rcbrt": unary(lambda x: 1 / np.cbrt(x)),
    "reciprocal": unary(lambda x: 1 / x),
    "rint": exact(_round_half_down),
    "round": exact(_round_half_away),
    "rsqrt": unary(lambda x: 1 / np.sqrt(x)),
    "sign": exact(_sign),
    "sin": unary(np.sin),
    "sinh": unary(np.sinh),
    "smooth_l1": _smooth_l1,
    "sqrt": unary(np.sqrt),
    "square": exact(np.square),
    "stop_gradient": _identity,
    "tan": unary(np.tan),
    "trunc": exact(np.trunc),
}
