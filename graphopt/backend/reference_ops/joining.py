"""Operators that put arrays together, cut them apart, repeat, pad or flip them."""

from __future__ import annotations

import itertools

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table, normal_axis


def _concat(call: Call) -> Outputs:
    """Concat along `dim`."""
    return [np.concatenate(call.inputs, call.integer("dim", 1))]


def _stack(call: Call) -> Outputs:
    """The inputs along a new axis."""
    return [np.stack(call.inputs, call.integer("axis", 0))]


def _pieces(x: Array, bounds: list[int], axis: int, squeeze: bool) -> Outputs:
    """The ranges between neighbouring bounds along the axis, as copies."""
    out = []
    for begin, end in itertools.pairwise(bounds):
        piece = np.take(x, range(begin, end), axis)
        out.append(np.squeeze(piece, axis) if squeeze else piece)
    return out


def _split(call: Call) -> Outputs:
    """SliceChannel: equal pieces.

    Raises:
        ValueError: the axis cannot be cut so.
    """
    axis, count = call.axis(default=1), call.integer("num_outputs")
    size = call.x.shape[axis]
    if size % count:
        raise ValueError(f"{call.op} cannot cut an axis of {size} into {count} equal pieces.")
    bounds = list(range(0, size + 1, size // count))
    return _pieces(call.x, bounds, axis, call.flag("squeeze_axis"))


def _split_v2(call: Call) -> Outputs:
    """Pieces that start at `indices`, or `sections` pieces of almost equal size, larger first."""
    axis, sections = call.axis(default=1), call.integer("sections", 0)
    size = call.x.shape[axis]
    if sections:
        small, larger = divmod(size, sections)
        bounds = [small * i + min(i, larger) for i in range(sections + 1)]
    else:
        # MXNet's front end writes a leading 0, so each index starts a piece and the last piece ends
        # the axis.
        bounds = [*call.ints("indices"), size]
    return _pieces(call.x, bounds, axis, call.flag("squeeze_axis"))


def _tile(call: Call) -> Outputs:
    return [np.tile(call.x, call.ints("reps"))]


def _repeat(call: Call) -> Outputs:
    """Each value `repeats` times along the axis, or of the flattened array without one."""
    axis = call.axis() if call.has("axis") else None
    return [np.repeat(call.x, call.integer("repeats"), axis)]


def _reverse(call: Call) -> Outputs:
    return [np.flip(call.x, call.ints("axis")).copy()]


def _pad(call: Call) -> Outputs:
    """Pad: `pad_width` holds (before, after) for every axis in one flat tuple."""
    mode, flat = call.text("mode"), call.ints("pad_width")
    widths = list(zip(flat[::2], flat[1::2], strict=True))
    if mode == "constant":
        value = call.number("constant_value", 0.0)
        return [np.pad(call.x, widths, "constant", constant_values=value)]
    if mode == "edge":
        return [np.pad(call.x, widths, "edge")]
    if mode == "reflect":
        return [np.pad(call.x, widths, "reflect")]
    raise call.unsupported(f"with mode={mode!r}")


def _slice_axis(call: Call) -> Outputs:
    """The range [begin, end) of one axis; negative numbers count from its end, None is its end."""
    axis = call.axis()
    end = call.integer("end") if call.has("end") else None
    index = (*(slice(None),) * axis, slice(call.integer("begin"), end))
    return [call.x[index].copy()]


def _box(call: Call) -> tuple[slice, ...]:
    """The ranges of slice: `begin`, `end` and `step` for the leading axes, None where open."""
    begin, end = call.maybe_ints("begin"), call.maybe_ints("end")
    step = call.maybe_ints("step") or (None,) * len(begin)
    return tuple(slice(b, e, s) for b, e, s in zip(begin, end, step, strict=True))


def _slice(call: Call) -> Outputs:
    return [call.x[_box(call)].copy()]


def _slice_assign(call: Call) -> Outputs:
    """A copy of the first input whose box holds the second input, or the number `scalar`."""
    out = call.x.copy()
    out[_box(call)] = call.inputs[1] if len(call.inputs) > 1 else call.number("scalar", 0.0)
    return [out]


def _slice_like(call: Call) -> Outputs:
    """The leading part of the first input with the second's lengths, along `axes` or all axes."""
    x, like = call.inputs
    axes = [normal_axis(a, x.ndim, call.op) for a in call.ints("axes", ())] or range(x.ndim)
    index = tuple(slice(like.shape[a] if a in axes else None) for a in range(x.ndim))
    return [x[index].copy()]


def _crop(call: Call) -> Outputs:
    """Crop of (N, C, H, W) to the height and width of the second input, or to `h_w`."""
    height, width = call.inputs[1].shape[2:] if len(call.inputs) > 1 else call.ints("h_w")
    if call.flag("center_crop"):
        top, left = (call.x.shape[2] - height) // 2, (call.x.shape[3] - width) // 2
    else:
        top, left = call.ints("offset", (0, 0))
    return [call.x[:, :, top : top + height, left : left + width].copy()]


TABLE: Table = {
    "Concat": _concat,
    "Crop": _crop,
    "Pad": _pad,
    "SliceChannel": _split,
    "_crop_assign": _slice_assign,
    "_crop_assign_scalar": _slice_assign,
    "_rnn_param_concat": _concat,
    "_slice_assign": _slice_assign,
    "_slice_assign_scalar": _slice_assign,
    "_split_v2": _split_v2,
    "concat": _concat,
    "crop": _slice,
    "flip": _reverse,
    "pad": _pad,
    "repeat": _repeat,
    "reverse": _reverse,
    "slice": _slice,
    "slice_axis": _slice_axis,
    "slice_like": _slice_like,
    "split": _split,
    "stack": _stack,
    "tile": _tile,
}
