"""Reductions over axes, and sums along an axis.

MXNet has no scalars: reducing every axis without keepdims gives shape (1,). The dtype stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from graphopt.backend.reference_ops.call import (
    Array,
    Call,
    Operator,
    Outputs,
    Table,
    narrow,
    normal_axis,
    wide,
)

Reduction: TypeAlias = Callable[[Array, tuple[int, ...]], Array]


def axes_of(call: Call, name: str = "axis") -> tuple[int, ...]:
    """The reduced axes, counted from the front: all by default, the others with `exclude`."""
    ndim = call.x.ndim
    given = call.ints(name, ())
    chosen = {normal_axis(a, ndim, call.op) for a in given}
    if given and call.flag("exclude"):
        chosen = set(range(ndim)) - chosen
    return tuple(sorted(chosen)) if given else tuple(range(ndim))


def _finish(call: Call, kept: Array, axes: tuple[int, ...]) -> Array:
    """The result of a reduction that kept its axes, with or without them as keepdims says."""
    if call.flag("keepdims"):
        return kept
    out = np.squeeze(kept, axes)
    return out if out.ndim else out.reshape(1)


def _reduction(function: Reduction) -> Operator:
    """The operator for a function of (array, axes) that keeps the reduced axes with length 1."""

    def run(call: Call) -> Outputs:
        axes = axes_of(call)
        with np.errstate(all="ignore"):
            return [narrow(_finish(call, function(call.x, axes), axes), call.x.dtype)]

    return run


def _working(x: Array) -> Array:
    """Floats in float64; integers in int64, so that they wrap only at the end."""
    return wide(x) if x.dtype.kind == "f" else narrow(x, np.int64)


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(_working(x).sum(axes, keepdims=True))


def _prod(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(_working(x).prod(axes, keepdims=True))


def _nansum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.nansum(_working(x), axes, keepdims=True))


def _nanprod(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.nanprod(_working(x), axes, keepdims=True))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """The mean; that of integers is cut towards zero by the final conversion."""
    return np.asarray(wide(x).mean(axes, keepdims=True))


def _max(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(x.max(axes, keepdims=True))


def _min(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(x.min(axes, keepdims=True))


def _norm(call: Call) -> Outputs:
    """The 1-norm or 2-norm over all axes, or over one or two of them."""
    order, axes = call.integer("ord", 2), axes_of(call)
    x = wide(call.x)
    if order == 1:
        out = np.abs(x).sum(axes, keepdims=True)
    elif order == 2:
        out = np.sqrt(np.square(x).sum(axes, keepdims=True))
    else:
        raise call.unsupported(f"of order {order}")
    return [narrow(_finish(call, out, axes), call.dtype(call.x.dtype, "out_dtype"))]


def _moments(call: Call) -> Outputs:
    """Mean and variance."""
    axes, x = axes_of(call, "axes"), wide(call.x)
    both = (x.mean(axes, keepdims=True), x.var(axes, keepdims=True))
    return [narrow(_finish(call, kept, axes), call.x.dtype) for kept in both]


def _cumsum(call: Call) -> Outputs:
    """Running sums along an axis; without one, of the flattened array."""
    axis = call.axis() if call.has("axis") else None
    return [narrow(np.cumsum(_working(call.x), axis), call.dtype(call.x.dtype))]


def _all_finite(call: Call) -> Outputs:
    """One float32: 1 if no value of any input is infinite or NaN."""
    finite = all(bool(np.isfinite(x).all()) for x in call.inputs)
    return [np.array([finite], np.float32)]


TABLE: Table = {
    "all_finite": _all_finite,
    "cumsum": _cumsum,
    "max": _reduction(_max),
    "max_axis": _reduction(_max),
    "mean": _reduction(_mean),
    "min": _reduction(_min),
    "min_axis": _reduction(_min),
    "moments": _moments,
    "multi_all_finite": _all_finite,
    "nanprod": _reduction(_nanprod),
    "nansum": _reduction(_nansum),
    "norm": _norm,
    "prod": _reduction(_prod),
    "sum": _reduction(_sum),
    "sum_axis": _reduction(_sum),
}
