"""Pooling and resizing of (N, C, *spatial) arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def _pooled(call: Call, x: Array) -> Array:
    """Pooling of a channels-first array."""
    spatial, one, zero = x.shape[2:], (1,) * (x.ndim - 2), (0,) * (x.ndim - 2)
    if call.flag("global_pool"):
        kernel, stride, pad = spatial, one, zero
    else:
        kernel = call.ints("kernel")
        stride, pad = call.ints("stride", ()) or one, call.ints("pad", ()) or zero
    counts = _places(call, spatial, kernel, stride, pad)
    kind, axes = call.text("pool_type", "max"), tuple(range(-len(kernel), 0))
    if kind == "max":
        windows = _windows(x, _least(x.dtype), counts, kernel, stride, pad)
        # NaN loses against every number, as in C's comparisons.
        return np.asarray(np.fmax.reduce(windows, axes))
    windows = _windows(wide(x), 0.0, counts, kernel, stride, pad)
    if kind == "sum":
        out = windows.sum(axes)
    elif kind == "avg":
        inside = call.flag("count_include_pad", True)
        out = windows.sum(axes) / _window_sizes(counts, spatial, kernel, stride, pad, inside)
    elif kind == "lp":
        # MXNet takes no absolute value: an odd power keeps the signs.
        power = call.integer("p_value")
        out = (windows**power).sum(axes)
        out = np.cbrt(out) if power == 3 else out ** (1 / power)
    else:
        raise call.unsupported(f"with pool_type={kind!r}")
    return narrow(out, x.dtype)


def _least(dtype: np.dtype[Any]) -> Any:
    """What stands in the padding of a maximum: the least finite number, as in MXNet."""
    return np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min


def _places(
    call: Call,
    spatial: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> tuple[int, ...]:
    """How many windows fit along each axis, by the pooling convention."""
    convention = call.text("pooling_convention", "valid")
    counts = []
    for size, k, s, p in zip(spatial, kernel, stride, pad, strict=True):
        if convention == "same":
            counts.append(math.ceil((size + 2 * p) / s))
        elif convention == "full":
            counts.append(1 + math.ceil((size + 2 * p - k) / s))
        else:
            counts.append(1 + (size + 2 * p - k) // s)
    return tuple(counts)


def _windows(
    x: Array,
    fill: Any,
    counts: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Array:
    """(N, C, *counts, *kernel): the values in each window, `fill` outside the array."""
    geometry = list(zip(x.shape[2:], counts, kernel, stride, pad, strict=True))
    spatial = tuple(range(2, x.ndim))
    # The full convention reaches past the padding at the end.
    after = [max((c - 1) * s + k - size - p, 0) for size, c, k, s, p in geometry]
    widths = [(0, 0), (0, 0), *zip(pad, after, strict=True)]
    padded = np.pad(x, widths, constant_values=fill)
    views = sliding_window_view(padded, tuple(kernel), spatial)  # type: ignore[call-overload]
    steps = (slice(None, (c - 1) * s + 1, s) for _, c, _, s, _ in geometry)
    index = (slice(None), slice(None), *steps)
    return np.asarray(views[index])


def _window_sizes(
    counts: Sequence[int],
    spatial: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    include_pad: bool,
) -> Array:
    """What a sum is divided by at each place; what lies past the padding never counts."""
    sizes = np.ones(())
    for count, size, k, s, p in zip(counts, spatial, kernel, stride, pad, strict=True):
        begin = np.arange(count) * s - p
        end = np.minimum(begin + k, size + p)
        if not include_pad:
            begin, end = np.maximum(begin, 0), np.minimum(end, size)
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
        return tuple(n if n % 2 == parity else n + step for n in (height, width))  # type: ignore[return-value]
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
