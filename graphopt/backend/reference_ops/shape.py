"""Operators that give the same values another shape or order of axes."""

from __future__ import annotations

import math

import numpy as np

from graphopt.backend.reference_ops.call import Call, Outputs, Table, normal_axis
from graphopt.ir.reshape import reshaped


def _reshape(call: Call) -> Outputs:
    """Reshape; `target_shape` with `keep_highest` is the way of MXNet's first releases."""
    spec = call.ints("shape", ())
    if spec:
        return [call.x.reshape(reshaped(call.x.shape, spec, call.flag("reverse")))]
    target = [v if v else -1 for v in call.ints("target_shape")]
    if call.flag("keep_highest"):
        target[0] = call.x.shape[0]
    return [call.x.reshape(target)]


def _reshape_like(call: Call) -> Outputs:
    """The first input in the shape of the second, or a range of axes of each."""
    x, like = call.inputs

    def bounds(side: str, ndim: int) -> tuple[int, int]:
        begin = call.integer(f"{side}_begin", 0)
        end = call.integer(f"{side}_end", ndim)
        return begin % ndim if begin < 0 else begin, end % ndim if end < 0 else end

    left, right = bounds("lhs", x.ndim), bounds("rhs", like.ndim)
    return [x.reshape(x.shape[: left[0]] + like.shape[right[0] : right[1]] + x.shape[left[1] :])]


def _flatten(call: Call) -> Outputs:
    """All axes but the first become one."""
    return [call.x.reshape(call.x.shape[0], math.prod(call.x.shape[1:]))]


def _transpose(call: Call) -> Outputs:
    """The axes in the given order, or reversed."""
    axes = call.ints("axes", ())
    return [np.transpose(call.x, axes or None)]


def _swap_axes(call: Call) -> Outputs:
    return [np.swapaxes(call.x, call.integer("dim1", 0), call.integer("dim2", 0))]


def _expand_dims(call: Call) -> Outputs:
    return [np.expand_dims(call.x, call.integer("axis"))]


def _squeeze(call: Call) -> Outputs:
    """Axes of length 1 go; a single value keeps one axis, since MXNet has no scalars."""
    axes = call.ints("axis") if call.has("axis") else None
    out = np.squeeze(call.x, axes)
    return [out if out.ndim else out.reshape(1)]


def _depth_to_space(call: Call) -> Outputs:
    """(N, C b², H, W) to (N, C, H b, W b)."""
    block, (n, c, h, w) = call.integer("block_size"), call.x.shape
    x = call.x.reshape(n, block, block, c // block**2, h, w)
    return [x.transpose(0, 3, 4, 1, 5, 2).reshape(n, c // block**2, h * block, w * block)]


def _space_to_depth(call: Call) -> Outputs:
    """(N, C, H, W) to (N, C b², H / b, W / b)."""
    block, (n, c, h, w) = call.integer("block_size"), call.x.shape
    x = call.x.reshape(n, c, h // block, block, w // block, block)
    return [x.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * block**2, h // block, w // block)]


def _broadcast_to(call: Call) -> Outputs:
    """Axes of length 1 are stretched; 0 in `shape` keeps a length."""
    shape = [want or have for want, have in zip(call.ints("shape"), call.x.shape, strict=True)]
    return [np.broadcast_to(call.x, shape).copy()]


def _broadcast_axis(call: Call) -> Outputs:
    """The given axes, of length 1, are stretched to the given sizes."""
    shape = list(call.x.shape)
    for axis, size in zip(call.ints("axis", ()), call.ints("size", ()), strict=True):
        shape[normal_axis(axis, call.x.ndim, call.op)] = size
    return [np.broadcast_to(call.x, shape).copy()]


def _broadcast_like(call: Call) -> Outputs:
    """The first input stretched to the second's shape, or along some axes only."""
    x, like = call.inputs
    if not call.has("lhs_axes"):
        return [np.broadcast_to(x, like.shape).copy()]
    shape = list(x.shape)
    for left, right in zip(call.ints("lhs_axes"), call.ints("rhs_axes"), strict=True):
        shape[left] = like.shape[right]
    return [np.broadcast_to(x, shape).copy()]


def _shape_array(call: Call) -> Outputs:
    return [np.array(call.x.shape, np.int64)]


def _size_array(call: Call) -> Outputs:
    return [np.array([call.x.size], np.int64)]


TABLE: Table = {
    "Flatten": _flatten,
    "Reshape": _reshape,
    "SwapAxis": _swap_axes,
    "broadcast_axes": _broadcast_axis,
    "broadcast_axis": _broadcast_axis,
    "broadcast_like": _broadcast_like,
    "broadcast_to": _broadcast_to,
    "depth_to_space": _depth_to_space,
    "expand_dims": _expand_dims,
    "flatten": _flatten,
    "reshape": _reshape,
    "reshape_like": _reshape_like,
    "shape_array": _shape_array,
    "size_array": _size_array,
    "space_to_depth": _space_to_depth,
    "squeeze": _squeeze,
    "swapaxes": _swap_axes,
    "transpose": _transpose,
}
