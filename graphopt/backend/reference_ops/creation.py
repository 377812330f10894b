"""Operators that make arrays out of attributes or of the shape of an input."""

from __future__ import annotations

import math

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table, narrow


def _filled(call: Call, value: float) -> Outputs:
    return [np.full(call.ints("shape", ()), value, call.dtype(np.float32))]


def _zeros(call: Call) -> Outputs:
    return _filled(call, 0.0)


def _ones(call: Call) -> Outputs:
    return _filled(call, 1.0)


def _full(call: Call) -> Outputs:
    return _filled(call, call.number("value"))


def _zeros_like(call: Call) -> Outputs:
    return [np.zeros_like(call.x)]


def _ones_like(call: Call) -> Outputs:
    return [np.ones_like(call.x)]


def _steps(start: float, step: float, count: int, repeat: int) -> Array:
    """`count` values, each `repeat` times in a row until the count is reached."""
    return start + step * (np.arange(count) // repeat)


def _arange(call: Call) -> Outputs:
    """Steps from start to below stop, each `repeat` times; without a stop, `start` is the stop."""
    start, step, repeat = (
        call.number("start", 0.0),
        call.number("step", 1.0),
        call.integer("repeat", 1),
    )
    if call.flag("infer_range"):
        raise call.unsupported("with infer_range: its length depends on its users")
    start, stop = (start, call.number("stop")) if call.has("stop") else (0.0, start)
    count = max(math.ceil((stop - start) / step), 0)
    return [narrow(_steps(start, step, count * repeat, repeat), call.dtype(np.float32))]


def _arange_like(call: Call) -> Outputs:
    """As many steps as the input has values, in its shape; or as long as one of its axes."""
    whole = not call.has("axis")
    count = call.x.size if whole else call.x.shape[call.axis()]
    start, step, repeat = (
        call.number("start", 0.0),
        call.number("step", 1.0),
        call.integer("repeat", 1),
    )
    out = narrow(_steps(start, step, count, repeat), call.x.dtype)
    return [out.reshape(call.x.shape) if whole else out]


def _linspace(call: Call) -> Outputs:
    """`num` values from start to stop, which is left out without endpoint."""
    count, start, stop = call.integer("num"), call.number("start"), call.number("stop")
    values = np.linspace(start, stop, count, call.flag("endpoint", True))
    return [narrow(values, call.dtype(np.float32))]


def _eye(call: Call) -> Outputs:
    """N rows and M columns (N of them for 0) with ones on the k-th diagonal."""
    rows, columns = call.integer("N"), call.integer("M", 0)
    return [np.eye(rows, columns or rows, call.integer("k", 0), call.dtype(np.float32))]


def _diag(call: Call) -> Outputs:
    """A vector becomes the k-th diagonal of a matrix; other arrays give that of two axes."""
    k = call.integer("k", 0)
    if call.x.ndim == 1:
        return [np.diag(call.x, k)]
    return [np.diagonal(call.x, k, call.integer("axis1", 0), call.integer("axis2", 1)).copy()]


TABLE: Table = {
    "_arange": _arange,
    "_contrib_arange_like": _arange_like,
    "_eye": _eye,
    "_full": _full,
    "_linspace": _linspace,
    "_ones": _ones,
    "_zeros": _zeros,
    "_zeros_without_dtype": _zeros,
    "diag": _diag,
    "ones_like": _ones_like,
    "zeros_like": _zeros_like,
}
