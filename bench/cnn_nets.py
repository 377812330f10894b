"""Convolutional nets that Gluon's zoo has not, as their papers have them."""

from __future__ import annotations

from typing import Any

from graphopt.compat import import_mxnet

nn = import_mxnet().gluon.nn


class _Bottleneck(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """A residual block around a convolution in groups, perhaps with a gate for each channel."""

    def __init__(
        self,
        width: int,
        outputs: int,
        stride: int,
        first: bool,
        *,
        gated: bool = False,
        groups: int = 32,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(nn.Conv2D(width, 1, use_bias=False), nn.BatchNorm())
            self.body.add(nn.Activation("relu"))
            around = {"padding": dilation, "dilation": dilation, "groups": groups}
            self.body.add(nn.Conv2D(width, 3, stride, use_bias=False, **around))
            self.body.add(nn.BatchNorm(), nn.Activation("relu"))
            self.body.add(nn.Conv2D(outputs, 1, use_bias=False), nn.BatchNorm())
            self.gate = nn.HybridSequential() if gated else None
            if gated:
                self.gate.add(nn.GlobalAvgPool2D(), nn.Conv2D(outputs // 16, 1))
                self.gate.add(nn.Activation("relu"), nn.Conv2D(outputs, 1))
                self.gate.add(nn.Activation("sigmoid"))
            self.short = nn.HybridSequential()
            if first:
                self.short.add(nn.Conv2D(outputs, 1, stride, use_bias=False), nn.BatchNorm())

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = self.body(x)
        if self.gate is not None:
            y = F.broadcast_mul(y, self.gate(y))
        return F.relu(y + (self.short(x) if len(self.short) else x))


def resnext50(gated: bool = False, prefix: str = "resnext_") -> Any:
    """ResNeXt-50 (32x4d; Xie et al., 2017), with gates SE-ResNeXt-50 (Hu et al., 2018)."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(64, 7, 2, 3, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(3, 2, 1))
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for at in range(blocks):
                width, first = 128 << stage, at == 0
                stride = 2 if first and stage else 1
                net.add(_Bottleneck(width, 2 * width, stride, first, gated=gated))
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(1000))
    return net


def fcn_resnet50(classes: int = 21, prefix: str = "fcn_") -> Any:
    """A ResNet-50 whose last stages dilate instead of leaving pixels out (Yu and Koltun, 2016).

    A head gives scores of classes, stretched to the size of the image (Long et al., 2015).
    """
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Conv2D(64, 7, 2, 3, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(3, 2, 1))
        for stage, (blocks, stride, dilation) in enumerate(
            ((3, 1, 1), (4, 2, 1), (6, 1, 2), (3, 1, 4))
        ):
            for at in range(blocks):
                width, first = 64 << stage, at == 0
                more = {"groups": 1, "dilation": dilation}
                net.add(_Bottleneck(width, 4 * width, stride if first else 1, first, **more))
        net.add(nn.Conv2D(512, 3, padding=1, use_bias=False), nn.BatchNorm())
        net.add(nn.Activation("relu"), nn.Conv2D(classes, 1))
        net.add(nn.HybridLambda(_stretched))
    return net


def _stretched(F: Any, x: Any) -> Any:
    return F.contrib.BilinearResize2D(x, scale_height=8, scale_width=8)
