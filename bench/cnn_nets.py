"""Convolutional nets that Gluon's zoo has not, as their papers have them."""

from __future__ import annotations

from typing import Any

from graphopt.compat import import_mxnet

nn = import_mxnet().gluon.nn


class _Bottleneck(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """A residual block around a convolution in 32 groups, with a gate for each channel."""

    def __init__(self, width: int, outputs: int, stride: int, gated: bool, first: bool) -> None:
        super().__init__()
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(nn.Conv2D(width, 1, use_bias=False), nn.BatchNorm())
            self.body.add(nn.Activation("relu"))
            self.body.add(nn.Conv2D(width, 3, stride, 1, groups=32, use_bias=False))
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
                net.add(_Bottleneck(width, 2 * width, stride, gated, first))
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(1000))
    return net
