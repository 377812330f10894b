"""Nets that answer for every pixel or box, as their papers have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn

#: Boxes of YOLOv3's three scales, coarse to fine, as widths and heights in pixels.
ANCHORS = (
    ((116, 90), (156, 198), (373, 326)),
    ((30, 61), (62, 45), (59, 119)),
    ((10, 13), (16, 30), (33, 23)),
)
STRIDES = (32, 16, 8)


def _convolution(channels: int, kernel: int, stride: int = 1, slope: float = 0.0) -> Any:
    part = nn.HybridSequential(prefix="")
    part.add(nn.Conv2D(channels, kernel, stride, kernel // 2, use_bias=False))
    part.add(nn.BatchNorm(momentum=0))
    part.add(nn.LeakyReLU(slope) if slope else nn.Activation("relu"))
    return part


class _Level(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """What a U-Net does at one resolution, around what it does at the lower ones."""

    def __init__(self, width: int, inner: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.down = nn.HybridSequential()
            self.down.add(_convolution(width, 3), _convolution(width, 3))
            self.inner, self.up = inner, None
            if inner is not None:
                self.narrow, self.up = _convolution(width, 3), nn.HybridSequential()
                self.up.add(_convolution(width, 3), _convolution(width, 3))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = self.down(x)
        if self.up is None:
            return x
        low = self.inner(F.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max"))
        high = self.narrow(F.UpSampling(low, scale=2, sample_type="nearest"))
        return self.up(F.concat(x, high, dim=1))


class _UNet(nn.HybridBlock):  # type: ignore[misc, name-defined]
    def __init__(
        self, classes: int, widths: Sequence[int], probabilities: bool, prefix: str
    ) -> None:
        super().__init__(prefix=prefix)
        with self.name_scope():
            level = None
            for width in reversed(widths):
                level = _Level(width, level)
            self.levels, self.last = level, nn.Conv2D(classes, 1)
            self.probabilities = probabilities

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = self.last(self.levels(x))
        return F.softmax(x, axis=1) if self.probabilities else x


def unet(
    classes: int = 21,
    widths: Sequence[int] = (32, 64, 128, 256, 512),
    probabilities: bool = True,
    prefix: str = "unet_",
) -> Any:
    """U-Net (Ronneberger et al., 2015), padded, with BatchNorm: what class each pixel is of."""
    return _UNet(classes, widths, probabilities, prefix)


class _Residual(nn.HybridBlock):  # type: ignore[misc, name-defined]
    def __init__(self, channels: int) -> None:
        super().__init__()
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(_convolution(channels // 2, 1, slope=0.1))
            self.body.add(_convolution(channels, 3, slope=0.1))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x + self.body(x)


def _darknet53() -> list[Any]:
    """Its three stages whose results are used (Redmon and Farhadi, 2018)."""
    stages = []
    stage = nn.HybridSequential(prefix="")
    stage.add(_convolution(32, 3, slope=0.1))
    for channels, blocks in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        stage.add(_convolution(channels, 3, 2, slope=0.1))
        for _ in range(blocks):
            stage.add(_Residual(channels))
        if channels >= 256:
            stages.append(stage)
            stage = nn.HybridSequential(prefix="")
    return stages


class _Boxes(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """Numbers of a scale to (class, score, corners) of each class and box."""

    def __init__(self, classes: int, anchors: Any, stride: int, extent: int) -> None:
        super().__init__()
        self.classes, self.count, self.stride = classes, len(anchors), stride
        places = extent // stride
        rows, columns = np.meshgrid(np.arange(places), np.arange(places), indexing="ij")
        corners = np.stack([columns, rows], -1).reshape(1, -1, 1, 2).astype("float32")
        with self.name_scope():
            self.out = nn.Conv2D(self.count * (classes + 5), 1)
            self.corners = self.params.get_constant("corners", corners)
            sizes = np.array(anchors, "float32").reshape(1, 1, -1, 2)
            self.sizes = self.params.get_constant("sizes", sizes)

    def hybrid_forward(self, F: Any, x: Any, corners: Any, sizes: Any) -> Any:
        x = self.out(x).reshape((0, self.count * (self.classes + 5), -1)).transpose((0, 2, 1))
        x = x.reshape((0, -1, self.count, self.classes + 5))
        centre = x.slice_axis(axis=-1, begin=0, end=2)
        extent = x.slice_axis(axis=-1, begin=2, end=4)
        object_ = x.slice_axis(axis=-1, begin=4, end=5)
        classes = x.slice_axis(axis=-1, begin=5, end=None)
        centre = F.broadcast_add(F.sigmoid(centre), corners) * self.stride
        half = F.broadcast_mul(F.exp(extent), sizes) / 2
        box = F.concat(centre - half, centre + half, dim=-1)
        scores = F.broadcast_mul(F.sigmoid(classes), F.sigmoid(object_))
        boxes = F.tile(box, reps=(self.classes, 1, 1, 1, 1))
        scores = F.transpose(scores, axes=(3, 0, 1, 2)).expand_dims(axis=-1)
        numbers = F.arange(0, self.classes).reshape((0, 1, 1, 1, 1))
        numbers = F.broadcast_add(scores * 0, numbers)
        found = F.concat(numbers, scores, boxes, dim=-1)
        return F.reshape(found.transpose((1, 0, 2, 3, 4)), (0, -1, 6))


class _Detector(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """YOLOv3 (Redmon and Farhadi, 2018)."""

    def __init__(self, classes: int, extent: int, prefix: str) -> None:
        super().__init__(prefix=prefix)
        with self.name_scope():
            self.stages, self.before = nn.HybridSequential(), nn.HybridSequential()
            self.after, self.boxes = nn.HybridSequential(), nn.HybridSequential()
            self.narrow = nn.HybridSequential()
            self.stages.add(*_darknet53())
            for at, channels in enumerate((512, 256, 128)):
                before = nn.HybridSequential(prefix="")
                for _ in range(2):
                    before.add(_convolution(channels, 1, slope=0.1))
                    before.add(_convolution(2 * channels, 3, slope=0.1))
                before.add(_convolution(channels, 1, slope=0.1))
                self.before.add(before)
                self.after.add(_convolution(2 * channels, 3, slope=0.1))
                self.boxes.add(_Boxes(classes, ANCHORS[at], STRIDES[at], extent))
                if at < 2:
                    self.narrow.add(_convolution(channels // 2, 1, slope=0.1))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        routes = []
        for stage in self.stages:
            x = stage(x)
            routes.append(x)
        found = []
        for at, route in enumerate(reversed(routes)):
            if at:
                x = self.narrow[at - 1](x).repeat(axis=-1, repeats=2).repeat(axis=-2, repeats=2)
                x = F.concat(x, route, dim=1)
            else:
                x = route
            x = self.before[at](x)
            found.append(self.boxes[at](self.after[at](x)))
        found = F.concat(*found, dim=1)
        found = F.contrib.box_nms(
            found,
            overlap_thresh=0.45,
            valid_thresh=0.01,
            topk=400,
            id_index=0,
            score_index=1,
            coord_start=2,
            force_suppress=False,
        )
        return found.slice_axis(axis=1, begin=0, end=100)


def yolo3(classes: int = 80, extent: int = 416, prefix: str = "yolo3_") -> Any:
    """YOLOv3 over Darknet-53, with boxes decoded and suppressed: (class, score, corners) each."""
    return _Detector(classes, extent, prefix)


def take_statistics(net: Any, *inputs: Any) -> None:
    """Let BatchNorm have the statistics of these inputs, as in a trained net.

    Without them numbers grow from layer to layer, to boxes of 1e37 pixels. MXNet writes them in
    the backward pass.
    """
    with mx.autograd.record():
        outputs = net(*inputs)
    outputs.backward()
    mx.nd.waitall()
