"""Convolution, its transpose, and im2col, in 1, 2 or 3 spatial axes, channels first.

Values are gathered into windows, multiplied and added in float64, and rounded once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table, narrow, wide

_CHANNELS_FIRST = ("NCW", "NCHW", "NCDHW", "None")


@dataclass(frozen=True)
class _Window:
    """The geometry of a convolution, one number per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilate: tuple[int, ...]
    pad: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """How far the dilated kernel reaches."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilate, strict=True))


def _window(call: Call) -> _Window:
    """The geometry in the attributes; absent ones mean stride 1, dilation 1 and no padding."""
    if call.text("layout", "None") not in _CHANNELS_FIRST:
        raise call.unsupported(f"in layout {call.text('layout')}")
    kernel = call.ints("kernel")
    one, zero = (1,) * len(kernel), (0,) * len(kernel)
    return _Window(
        kernel,
        call.ints("stride", ()) or one,
        call.ints("dilate", ()) or one,
        call.ints("pad", ()) or zero,
    )


def _patches(x: Array, window: _Window) -> Array:
    """What the kernel sees at each place: (N, C, *spatial) to (N, C, *out, *kernel)."""
    spatial = tuple(range(2, x.ndim))
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in window.pad)])
    views = sliding_window_view(padded, window.extent, spatial)  # type: ignore[call-overload]
    # The views come as (N, C, *places, *extent): keep every stride-th place and every dilate-th
    # value.
    steps = (slice(None, None, s) for s in (*window.stride, *window.dilate))
    return np.asarray(views[_inside(steps)])


def _inside(spatial: Iterable[slice]) -> tuple[slice, ...]:
    """The index that takes all samples and channels, and the given ranges of the other axes."""
    return (slice(None), slice(None), *spatial)


def _convolution(call: Call) -> Outputs:
    """Data (N, C, *spatial), weight (num_filter, C / num_group, *kernel), bias unless no_bias."""
    window, groups = _window(call), call.integer("num_group", 1)
    weight = wide(call.inputs[1])
    seen = _patches(wide(call.x), window)
    parts = [
        _weighted(part, kernels)
        for part, kernels in zip(
            np.split(seen, groups, 1), np.split(weight, groups, 0), strict=True
        )
    ]
    return [_with_bias(call, np.concatenate(parts, 1), no_bias=False)]


def _weighted(seen: Array, weight: Array) -> Array:
    """Patches (N, C, *out, *kernel) and weight (O, C, *kernel) to (N, O, *out)."""
    rank = weight.ndim - 2
    window = list(range(2 + rank, 2 + 2 * rank))
    out = np.tensordot(seen, weight, ([1, *window], list(range(1, weight.ndim))))
    return np.moveaxis(out, -1, 1)


def _with_bias(call: Call, out: Array, no_bias: bool) -> Array:
    """The result in the dtype of the data, with the bias of each channel unless there is none."""
    if not call.flag("no_bias", no_bias):
        out = out + wide(call.inputs[2]).reshape((-1,) + (1,) * (out.ndim - 2))
    return narrow(out, call.x.dtype)


def _deconvolution(call: Call) -> Outputs:
    """Data (N, C, *spatial), weight (C, num_filter / num_group, *kernel), bias if no_bias=False.

    The result has (in - 1) stride + extent - 2 pad + adj places along an axis. A target_shape that
    is not all zeros overrides pad and adj.
    """
    window, groups = _window(call), call.integer("num_group", 1)
    pad, adjust = _deconvolution_edges(call, window)
    parts = [
        _spread(part, kernels, window, adjust)
        for part, kernels in zip(
            np.split(wide(call.x), groups, 1),
            np.split(wide(call.inputs[1]), groups, 0),
            strict=False,
        )
    ]
    whole = np.concatenate(parts, 1)
    inner = (slice(p, size - p) for p, size in zip(pad, whole.shape[2:], strict=True))
    return [_with_bias(call, whole[_inside(inner)], no_bias=True)]


def _deconvolution_edges(call: Call, window: _Window) -> tuple[Sequence[int], Sequence[int]]:
    """What is cut from both ends of each axis, and what is added to its end first."""
    target = call.ints("target_shape", ())
    if not any(target):
        return window.pad, call.ints("adj", ()) or (0,) * len(window.kernel)
    sizes = zip(call.x.shape[2:], window.stride, window.extent, strict=True)
    surplus = [(n - 1) * s + e - t for (n, s, e), t in zip(sizes, target, strict=True)]
    return [(v + 1) // 2 for v in surplus], [v % 2 for v in surplus]


def _spread(x: Array, weight: Array, window: _Window, adjust: Sequence[int]) -> Array:
    """The uncut result of one group: each value adds its kernel to the places it reaches."""
    spatial = x.shape[2:]
    sizes = zip(spatial, window.stride, window.extent, adjust, strict=True)
    out = np.zeros((x.shape[0], weight.shape[1], *((n - 1) * s + e + a for n, s, e, a in sizes)))
    for place in itertools.product(*map(range, window.kernel)):
        taps = weight[_inside(slice(k, k + 1) for k in place)].reshape(weight.shape[:2])
        reached = (
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, n, s in zip(place, window.dilate, spatial, window.stride, strict=True)
        )
        out[_inside(reached)] += np.moveaxis(np.tensordot(x, taps, ([1], [0])), -1, 1)
    return out


def _im2col(call: Call) -> Outputs:
    """(N, C, *spatial) to (N, C * kernel, places)."""
    window = _window(call)
    rank = len(window.kernel)
    seen = _patches(call.x, window)
    order: list[Any] = [0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank)]
    rows = call.x.shape[1] * math.prod(window.kernel)
    return [seen.transpose(order).reshape(call.x.shape[0], rows, -1)]


def bilinear_upsampling(x: Array, weight: Array, scale: int) -> Array:
    """(N, C, H, W) enlarged `scale` times, channel by channel, with a weight (C, 1, k, k)."""
    kernel = 2 * scale - scale % 2
    attrs = {
        "kernel": (kernel, kernel),
        "stride": (scale, scale),
        "pad": (scale // 2, scale // 2),
        "num_group": x.shape[1],
        "num_filter": x.shape[1],
    }
    return _deconvolution(Call("Deconvolution", [x, weight], attrs))[0]


TABLE: Table = {
    "Convolution": _convolution,
    "Convolution_v1": _convolution,
    "Deconvolution": _deconvolution,
    "im2col": _im2col,
}
