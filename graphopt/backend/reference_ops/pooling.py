"""Pooling and resizing of (N, C, *spatial) arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table, narrow, wide
from graphopt.backend.reference_ops.convolution import bilinear_upsampling

_CHANNELS_LAST = ("NWC", "NHWC", "NDHWC")


def _pooling(call: Call) -> Outputs:
    """Pooling: max, avg, sum or lp, over windows or over the whole spatial extent."""
    last = call.text("layout", "None") in _CHANNELS_LAST
    x = np.moveaxis(call.x, -1, 1) if last else call.x
    out = _pooled(call, x)
    return [np.moveaxis(out, 1, -1) if last else out]


@dataclass(frozen=True)
class _Axis:
    """The windows along one spatial axis of `size` values: `count` of them, `stride` apart."""

    size: int
    kernel: int
    stride: int
    pad: int
    count: int


def _axes(call: Call, spatial: tuple[int, ...]) -> list[_Axis]:
    """The windows along each axis; one over all of it for a global pooling."""
    if call.flag("global_pool"):
        return [_Axis(size, kernel=size, stride=1, pad=0, count=1) for size in spatial]
    kernel = call.ints("kernel")
    stride = call.ints("stride", ()) or (1,) * len(kernel)
    pad = call.ints("pad", ()) or (0,) * len(kernel)
    return [
        _Axis(size, k, s, p, _count(call, size + 2 * p, k, s))
        for size, k, s, p in zip(spatial, kernel, stride, pad, strict=True)
    ]


def _count(call: Call, size: int, kernel: int, stride: int) -> int:
    """How many windows fit along an axis of `size` values with its padding, by the convention."""
    convention = call.text("pooling_convention", "valid")
    if convention == "same":
        return math.ceil(size / stride)
    if convention == "full":
        return 1 + math.ceil((size - kernel) / stride)
    return 1 + (size - kernel) // stride


def _pooled(call: Call, x: Array) -> Array:
    """Pooling of a channels-first array."""
    axes, kind = _axes(call, x.shape[2:]), call.text("pool_type", "max")
    inner = tuple(range(-len(axes), 0))
    if kind == "max":
        # NaN loses against every number, as in C's comparisons.
        return np.asarray(np.fmax.reduce(_windows(x, _least(x.dtype), axes), inner))
    windows = _windows(wide(x), 0.0, axes)
    if kind == "sum":
        out = windows.sum(inner)
    elif kind == "avg":
        out = windows.sum(inner) / _window_sizes(axes, call.flag("count_include_pad", True))
    elif kind == "lp":
        # MXNet takes no absolute value: an odd power keeps the signs.
        power = call.integer("p_value")
        out = (windows**power).sum(inner)
        out = np.cbrt(out) if power == 3 else out ** (1 / power)
    else:
        raise call.unsupported(f"with pool_type={kind!r}")
    return narrow(out, x.dtype)


def _least(dtype: np.dtype[Any]) -> Any:
    """What stands in the padding of a maximum: the least finite number, as in MXNet."""
    return np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min


def _windows(x: Array, fill: Any, axes: Sequence[_Axis]) -> Array:
    """The values in each window, `fill` outside the array: (N, C, *counts, *kernel)."""
    # The full convention reaches past the padding at the end.
    reach = [(a.count - 1) * a.stride + a.kernel for a in axes]
    after = [max(r - a.size - a.pad, 0) for r, a in zip(reach, axes, strict=True)]
    before = [a.pad for a in axes]
    widths = [(0, 0), (0, 0), *zip(before, after, strict=True)]
    padded = np.pad(x, widths, constant_values=fill)
    kernel, spatial = tuple(a.kernel for a in axes), tuple(range(2, x.ndim))
    views = sliding_window_view(padded, kernel, spatial)  # type: ignore[call-overload]
    steps = (slice(None, (a.count - 1) * a.stride + 1, a.stride) for a in axes)
    index = (slice(None), slice(None), *steps)
    return np.asarray(views[index])


def _window_sizes(axes: Sequence[_Axis], include_pad: bool) -> Array:
    """What a sum is divided by at each place; what lies past the padding never counts."""
    sizes = np.ones(())
    for a in axes:
        begin = np.arange(a.count) * a.stride - a.pad
        end = np.minimum(begin + a.kernel, a.size + a.pad)
        if not include_pad:
            begin, end = np.maximum(begin, 0), np.minimum(end, a.size)
        # A window past the end holds nothing: its sum is 0, and so is its mean.
        sizes = np.multiply.outer(sizes, np.maximum(end - begin, 1))
    return sizes


def _adaptive_average(call: Call) -> Outputs:
    """The means of output_size overlapping cells, (1, 1) by default."""
    given = call.ints("output_size", ()) or (1,)
    rows, columns = given if len(given) == 2 else given * 2
    x = wide(call.x)
    height, width = x.shape[2:]
    out = np.empty((*x.shape[:2], rows, columns))
    for i in range(rows):
        for j in range(columns):
            cell = x[:, :, _cell(i, rows, height), _cell(j, columns, width)]
            out[:, :, i, j] = cell.mean((2, 3))
    return [narrow(out, call.x.dtype)]


def _cell(place: int, places: int, size: int) -> slice:
    """The range of an axis that one of the places covers."""
    return slice(place * size // places, -(-(place + 1) * size // places))


def _upsampling(call: Call) -> Outputs:
    """UpSampling: nearest repeats values and joins several inputs; bilinear has a weight."""
    scale, kind = call.integer("scale"), call.text("sample_type")
    if kind == "bilinear":
        return [bilinear_upsampling(call.x, call.inputs[1], scale)]
    height, width = (scale * n for n in call.x.shape[2:])
    large = [x.repeat(height // x.shape[2], 2).repeat(width // x.shape[3], 3) for x in call.inputs]
    if call.text("multi_input_mode", "concat") == "concat":
        return [np.concatenate(large, 1)]
    return [narrow(np.sum(large, 0, np.float64), call.x.dtype)]


def _bilinear_resize(call: Call) -> Outputs:
    """_contrib_BilinearResize2D of (N, C, H, W)."""
    (height, width), corners = _resized(call), call.flag("align_corners", True)
    out = _stretched(wide(call.x), 2, height, corners)
    return [narrow(_stretched(out, 3, width, corners), call.x.dtype)]


def _resized(call: Call) -> tuple[int, int]:
    """The height and width that the mode asks for."""
    mode, (height, width) = call.text("mode", "size"), call.x.shape[2:]
    if mode == "size":
        if call.has("scale_height"):
            return (
                int(call.number("scale_height") * height),
                int(call.number("scale_width") * width),
            )
        return call.integer("height", 1), call.integer("width", 1)
    if mode == "like":
        like = call.inputs[1].shape
        return like[2], like[3]
    if mode == "odd_scale":
        return (
            _odd_scaled(height, call.number("scale_height")),
            _odd_scaled(width, call.number("scale_width")),
        )
    if mode in _TO_PARITY:
        parity, step = _TO_PARITY[mode]
        height, width = (n if n % 2 == parity else n + step for n in (height, width))
        return height, width
    raise call.unsupported(f"with mode={mode!r}")


_TO_PARITY = {
    "to_even_down": (0, -1),
    "to_even_up": (0, 1),
    "to_odd_down": (1, -1),
    "to_odd_up": (1, 1),
}


def _odd_scaled(size: int, scale: float) -> int:
    """An odd length keeps its first place: one less is scaled, and one is added."""
    return int((size - 1) * scale) + 1 if size % 2 else int(size * scale)


def _stretched(x: Array, axis: int, count: int, corners: bool) -> Array:
    """Linear interpolation along one axis to `count` places.

    With `corners` the first and last places coincide; else the outer edges of the first and last
    cells do.
    """
    size = x.shape[axis]
    if corners:
        source = np.arange(count) * ((size - 1) / (count - 1) if count > 1 else 0.0)
    else:
        source = np.maximum((np.arange(count) + 0.5) * size / count - 0.5, 0)
    low = np.minimum(source.astype(int), size - 1)
    high = np.minimum(low + 1, size - 1)
    share = (source - low).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return np.asarray(np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share)


TABLE: Table = {
    "Pooling": _pooling,
    "Pooling_v1": _pooling,
    "UpSampling": _upsampling,
    "_contrib_AdaptiveAvgPooling2D": _adaptive_average,
    "_contrib_BilinearResize2D": _bilinear_resize,
}
