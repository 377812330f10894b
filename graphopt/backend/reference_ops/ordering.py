"""Sorting, and the positions of extremes. Equal values keep their order, in both directions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Operator, Outputs, Table, narrow


def _order(x: Array, axis: int, ascending: bool) -> Array:
    """The positions, along the axis, that sort the array."""
    if ascending:
        return np.argsort(x, axis, kind="stable")
    # Reversed twice, so that equal values keep their order and unsigned integers need no sign.
    backward = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backward, axis)


def _lined_up(call: Call) -> tuple[Array, int]:
    """The array and the axis to sort, the last by default; an explicit None flattens the array."""
    if "axis" in call.attrs and call.attrs["axis"] is None:
        return call.x.ravel(), 0
    return call.x, call.axis(default=-1)


def _sort(call: Call) -> Outputs:
    x, axis = _lined_up(call)
    order = _order(x, axis, call.flag("is_ascend", True))
    return [np.take_along_axis(x, order, axis)]


def _argsort(call: Call) -> Outputs:
    """Positions, as float32 by default."""
    x, axis = _lined_up(call)
    order = _order(x, axis, call.flag("is_ascend", True))
    return [narrow(order, call.dtype(np.float32))]


def _topk(call: Call) -> Outputs:
    """The k largest along the axis, or smallest with is_ascend; k < 1 means all.

    `ret_typ` asks for positions (float32 by default), values, both, or a mask of ones in the shape
    of the input.
    """
    x, axis = _lined_up(call)
    count, kind = call.integer("k", 1), call.text("ret_typ", "indices")
    order = _order(x, axis, call.flag("is_ascend"))
    order = np.take(order, range(count if count > 0 else x.shape[axis]), axis)
    values, positions = np.take_along_axis(x, order, axis), narrow(order, call.dtype(np.float32))
    if kind == "mask":
        mask = np.zeros_like(x)
        np.put_along_axis(mask, order, 1, axis)
        return [mask.reshape(call.x.shape)]
    return {"indices": [positions], "value": [values], "both": [values, positions]}[kind]


def _extreme(function: Callable[[Array, int | None], Array]) -> Operator:
    """Argmax or argmin: the first position, in the dtype of the input."""

    def run(call: Call) -> Outputs:
        axis = call.axis() if call.has("axis") else None
        out = np.asarray(function(call.x, axis))
        if call.flag("keepdims"):
            out = out.reshape((1,) * call.x.ndim) if axis is None else np.expand_dims(out, axis)
        return [narrow(out if out.ndim else out.reshape(1), call.x.dtype)]

    return run


def _argmax_channel(call: Call) -> Outputs:
    """The position of the largest value along axis 1."""
    return [narrow(np.argmax(call.x, 1), call.x.dtype)]


TABLE: Table = {
    "argmax": _extreme(np.argmax),
    "argmax_channel": _argmax_channel,
    "argmin": _extreme(np.argmin),
    "argsort": _argsort,
    "sort": _sort,
    "topk": _topk,
}
