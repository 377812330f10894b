"""Nets with gates, functions and groups between their convolutions, as their papers have them."""

from __future__ import annotations

from typing import Any

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


class HardSwish(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """``x relu6(x + 3) / 6``, of operators that Gluon has."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x * (F.clip(x + 3, 0, 6) / 6)


class Mish(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """``x tanh(log(1 + exp(x)))`` (Misra, 2019), of operators that Gluon has."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x * F.tanh(F.Activation(x, act_type="softrelu"))


class _HardSigmoid(nn.HybridBlock):  # type: ignore[misc, name-defined]
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.clip(x + 3, 0, 6) / 6


_FUNCTIONS = {
    "relu": lambda: nn.Activation("relu"),
    "sigmoid": lambda: nn.Activation("sigmoid"),
    "hard-sigmoid": _HardSigmoid,
    "swish": nn.Swish,
    "hard-swish": HardSwish,
    "mish": Mish,
}


def _convolved(channels: int, kernel: int = 1, stride: int = 1, **options: Any) -> list[Any]:
    """A convolution of padded images, and its BatchNorm."""
    conv = nn.Conv2D(channels, kernel, stride, kernel // 2, use_bias=False, **options)
    return [conv, nn.BatchNorm()]


class _Gated(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """Squeeze and excitation (Hu et al., 2018)."""

    def __init__(self, channels: int, middle: int, function: str, gate: str) -> None:
        super().__init__()
        with self.name_scope():
            self.gate = nn.HybridSequential()
            self.gate.add(nn.GlobalAvgPool2D(), nn.Conv2D(middle, 1), _FUNCTIONS[function]())
            self.gate.add(nn.Conv2D(channels, 1), _FUNCTIONS[gate]())

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.broadcast_mul(x, self.gate(x))


class _Inverted(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """Widened, convolved channel by channel, gated, and narrowed."""

    def __init__(
        self,
        channels: tuple[int, int, int],
        kernel: int,
        stride: int,
        function: str,
        gate: tuple[int, str, str] | None,
    ) -> None:
        super().__init__()
        given, wide, made = channels
        self.is_residual = stride == 1 and given == made
        with self.name_scope():
            self.body = nn.HybridSequential()
            if wide != given:
                self.body.add(*_convolved(wide), _FUNCTIONS[function]())
            self.body.add(*_convolved(wide, kernel, stride, groups=wide), _FUNCTIONS[function]())
            if gate is not None:
                self.body.add(_Gated(wide, *gate))
            self.body.add(*_convolved(made))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x + self.body(x) if self.is_residual else self.body(x)


def mobilenet_v3(prefix: str = "mobilenet_v3_") -> Any:
    """MobileNetV3 large (Howard et al., 2019)."""
    rows = (
        # kernel, wide, made, gated, function, stride
        *((3, 16, 16, 0, "relu", 1), (3, 64, 24, 0, "relu", 2), (3, 72, 24, 0, "relu", 1)),
        *((5, 72, 40, 1, "relu", 2), (5, 120, 40, 1, "relu", 1), (5, 120, 40, 1, "relu", 1)),
        *((3, 240, 80, 0, "hard-swish", 2), (3, 200, 80, 0, "hard-swish", 1)),
        *((3, 184, 80, 0, "hard-swish", 1), (3, 184, 80, 0, "hard-swish", 1)),
        *((3, 480, 112, 1, "hard-swish", 1), (3, 672, 112, 1, "hard-swish", 1)),
        *((5, 672, 160, 1, "hard-swish", 2), (5, 960, 160, 1, "hard-swish", 1)),
        (5, 960, 160, 1, "hard-swish", 1),
    )
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(*_convolved(16, 3, 2), HardSwish())
        given = 16
        for kernel, wide, made, gated, function, stride in rows:
            gate = (max(8, wide // 4), "relu", "hard-sigmoid") if gated else None
            net.add(_Inverted((given, wide, made), kernel, stride, function, gate))
            given = made
        net.add(*_convolved(960), HardSwish(), nn.GlobalAvgPool2D())
        net.add(nn.Conv2D(1280, 1), HardSwish(), nn.Flatten(), nn.Dense(1000))
    return net


def efficientnet(prefix: str = "efficientnet_") -> Any:
    """EfficientNet-B0 (Tan and Le, 2019)."""
    rows = (
        # times wider, made, blocks, stride, kernel
        *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
        *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
    )
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(*_convolved(32, 3, 2), nn.Swish())
        given = 32
        for times, made, blocks, stride, kernel in rows:
            for at in range(blocks):
                gate = (max(1, given // 4), "swish", "sigmoid")
                channels = (given, times * given, made)
                net.add(_Inverted(channels, kernel, 1 if at else stride, "swish", gate))
                given = made
        net.add(*_convolved(1280), nn.Swish(), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(1000))
    return net


def _mish(channels: int, kernel: int = 1, stride: int = 1) -> Any:
    layer = nn.HybridSequential()
    layer.add(*_convolved(channels, kernel, stride), Mish())
    return layer


class _MishUnit(nn.HybridBlock):  # type: ignore[misc, name-defined]
    def __init__(self, middle: int, made: int) -> None:
        super().__init__()
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(_mish(middle), _mish(made, 3))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x + self.body(x)


class _PartialStage(nn.HybridBlock):  # type: ignore[misc, name-defined]
    """A stage that half of the channels go around (Wang et al., 2020)."""

    def __init__(self, made: int, units: int, *, is_first: bool) -> None:
        super().__init__()
        half = made if is_first else made // 2
        with self.name_scope():
            self.down, self.around = _mish(made, 3, 2), _mish(half)
            self.through = nn.HybridSequential()
            self.through.add(_mish(half))
            for _ in range(units):
                self.through.add(_MishUnit(made // 2, half))
            self.through.add(_mish(half))
            self.join = _mish(made)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = self.down(x)
        return self.join(F.concat(self.through(x), self.around(x), dim=1))


def csp_darknet(prefix: str = "csp_darknet_") -> Any:
    """CSPDarknet-53 with Mish, the backbone of YOLOv4 (Bochkovskiy et al., 2020)."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(_mish(32, 3))
        for at, (made, units) in enumerate(((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))):
            net.add(_PartialStage(made, units, is_first=at == 0))
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(1000))
    return net


class _FaceUnit(nn.HybridBlock):  # type: ignore[misc, name-defined]
    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(nn.BatchNorm(), *_convolved(made, 3), nn.PReLU(in_channels=made))
            self.body.add(*_convolved(made, 3, stride))
            self.short = nn.HybridSequential()
            if stride != 1 or given != made:
                self.short.add(*_convolved(made, 1, stride))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.body(x) + (self.short(x) if len(self.short) else x)


def arcface(prefix: str = "arcface_") -> Any:
    """The ResNet-50 that ArcFace embeds faces of 112x112 with (Deng et al., 2019)."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(*_convolved(64, 3), nn.PReLU(in_channels=64))
        given = 64
        for units, made in ((3, 64), (4, 128), (14, 256), (3, 512)):
            for at in range(units):
                net.add(_FaceUnit(given, made, 1 if at else 2))
                given = made
        net.add(nn.BatchNorm(), nn.Dropout(0.4), nn.Flatten(), nn.Dense(512), nn.BatchNorm())
    return net


def pose(prefix: str = "pose_") -> Any:
    """Simple baselines of human pose: ResNet-18 and three deconvolutions (Xiao et al., 2018)."""
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(*mx.gluon.model_zoo.vision.resnet18_v1().features[:-1])
        for _ in range(3):
            net.add(nn.Conv2DTranspose(256, 4, 2, 1, use_bias=False), nn.BatchNorm())
            net.add(nn.Activation("relu"))
        net.add(nn.Conv2D(17, 1))
    return net
