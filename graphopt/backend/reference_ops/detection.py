"""Regions and boxes: ROIPooling, ROIAlign and the overlap of boxes."""

from __future__ import annotations

import math

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table, narrow, wide


def _roi_pooling(call: Call) -> Outputs:
    """ROIPooling: data (B, C, H, W) and regions (R, 5), which hold an image's index and corners."""
    x, rois = call.inputs
    rows, columns = call.ints("pooled_size")
    scale = np.float32(call.number("spatial_scale"))
    out = np.zeros((len(rois), x.shape[1], rows, columns), x.dtype)
    for r, roi in enumerate(rois):
        image = int(roi[0])
        if not 0 <= image < len(x):
            continue
        left, top, right, bottom = (_round(v * scale) for v in roi[1:])
        for i in range(rows):
            vertical = _bin(i, rows, top, bottom, x.shape[2])
            for j in range(columns):
                cell = x[image, :, vertical, _bin(j, columns, left, right, x.shape[3])]
                if cell.size:
                    out[r, :, i, j] = cell.max((1, 2))
    return [out]


def _round(value: float) -> int:
    """C's round: ties go away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def _bin(place: int, places: int, first: int, last: int, limit: int) -> slice:
    """The part of [first, last] that one of the places covers, within [0, limit)."""
    size = np.float32(max(last - first + 1, 1)) / np.float32(places)
    begin = first + math.floor(np.float32(place) * size)
    end = first + math.ceil(np.float32(place + 1) * size)
    return slice(min(max(begin, 0), limit), min(max(end, 0), limit))


def _roi_align(call: Call) -> Outputs:
    """_contrib_ROIAlign: means of bilinear samples in a grid over each region (R, 5)."""
    if call.flag("position_sensitive"):
        raise call.unsupported("with position_sensitive")
    x, rois = wide(call.x), wide(call.inputs[1])
    rows, columns = call.ints("pooled_size")
    shift = 0.5 if call.flag("aligned") else 0.0
    out = np.zeros((len(rois), x.shape[1], rows, columns))
    for r, roi in enumerate(rois):
        left, top, right, bottom = roi[1:] * call.number("spatial_scale") - shift
        width, height = right - left, bottom - top
        if not call.flag("aligned"):
            width, height = max(width, 1.0), max(height, 1.0)
        ys = _samples(call, top, height, rows)
        xs = _samples(call, left, width, columns)
        values = np.array([[_sample(x[int(roi[0])], y, v) for v in xs] for y in ys])
        grid = values.reshape(rows, len(ys) // rows, columns, len(xs) // columns, -1)
        out[r] = grid.mean((1, 3)).transpose(2, 0, 1)
    return [narrow(out, call.x.dtype)]


def _samples(call: Call, start: float, length: float, places: int) -> Array:
    """The samples along one axis: sample_ratio a place, or as many as the place is long."""
    ratio = call.integer("sample_ratio", -1)
    count = ratio if ratio > 0 else math.ceil(length / places)
    return start + (np.arange(places * count) + 0.5) * length / (places * count)


def _sample(image: Array, y: float, x: float) -> Array:
    """The image (C, H, W) at a point between its pixels, (C,); zero more than one pixel outside."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(len(image))
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, across = y - top, x - left
    upper = image[:, top, left] * (1 - across) + image[:, top, right] * across
    lower = image[:, bottom, left] * (1 - across) + image[:, bottom, right] * across
    return np.asarray(upper * (1 - down) + lower * down)


def _box_iou(call: Call) -> Outputs:
    """_contrib_box_iou: intersection over union of every left box with every right one."""
    left, right = (_corners(wide(v), call.text("format", "corner")) for v in call.inputs)
    a, b = left.reshape(-1, 1, 4), right.reshape(1, -1, 4)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    both = np.maximum(sides, 0).prod(-1)
    union = _area(a) + _area(b) - both
    out = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    return [narrow(out.reshape(left.shape[:-1] + right.shape[:-1]), call.x.dtype)]


def _corners(boxes: Array, form: str) -> Array:
    """Boxes as (left, top, right, bottom); `center` gives them as (x, y, width, height)."""
    if form == "corner":
        return boxes
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def _area(boxes: Array) -> Array:
    """The area, zero for a box turned inside out."""
    width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    return np.where((width < 0) | (height < 0), 0, width * height)


TABLE: Table = {
    "ROIPooling": _roi_pooling,
    "_contrib_ROIAlign": _roi_align,
    "_contrib_box_iou": _box_iou,
}
