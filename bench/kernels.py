"""Expressions that kernels are timed on, in MXNet; bench/peers/server.py has them in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet

#: name -> shape of the full-size arrays
SHAPES: dict[str, tuple[int, ...]] = {
    "chain": (4000, 1000),
    "layer_norm": (4096, 768),
    "softmax": (4096, 768),
    "log_softmax": (4096, 768),
    "gelu": (4096, 768),
    "masked_softmax": (4096, 768),
    "instance_norm": (8, 96, 56, 56),
    "group_norm": (8, 96, 56, 56),
    "prelu": (8, 96, 56, 56),
    "clip": (8, 96, 56, 56),
    "gate": (8, 96, 56, 56),
    "channel_softmax": (8, 21, 224, 224),
    "channel_norm": (8, 96, 56, 56),
    "centred": (32, 500, 300),
}
#: Shapes of what else a gradient is taken by.
WEIGHTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "chain": ((1000,),),
    "layer_norm": ((768,), (768,)),
    "instance_norm": ((96,), (96,)),
    "group_norm": ((8,), (8,)),
    "prelu": ((96,),),
    "gate": ((8, 96, 1, 1),),
    "channel_norm": ((96,), (96,)),
}
#: Shapes for a check, by the number of axes; weights keep theirs but for rows.
SMALL = {2: (64, 48), 3: (4, 30, 24), 4: (8, 96, 5, 4)}


@dataclass(frozen=True)
class Expression:
    """One expression and its inputs.

    Attributes:
        arrays: x, then weights or a mask of x's shape.
        head: the gradient of the result.
        learned: how many of the arrays get a gradient.
    """

    name: str
    arrays: list[np.ndarray]
    head: np.ndarray
    learned: int

    @property
    def nbytes(self) -> tuple[int, int]:
        """What forward, and forward with backward, read and write at least."""
        full = [a.nbytes for a in self.arrays if a.shape == self.head.shape]
        forward = sum(full) + self.head.nbytes
        return forward, forward + sum(full) + 2 * self.head.nbytes


def expression(name: str, *, small: bool = False) -> Expression:
    """The expression of that name, on random values."""
    shape = SMALL[len(SHAPES[name])] if small else SHAPES[name]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype("float32")]
    if name == "masked_softmax":
        arrays.append((rng.random(shape) < 0.7).astype("float32"))
    weights = WEIGHTS.get(name, ())
    for weight in weights:
        extents = shape[1:] if len(shape) == 2 else weight
        arrays.append(rng.normal(size=extents).astype("float32"))
    head = rng.normal(size=shape).astype("float32")
    return Expression(name, arrays, head, 1 + len(weights))


def block(name: str) -> Any:
    """The expression as a HybridBlock of its arrays."""
    mx = import_mxnet()

    class Net(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def hybrid_forward(self, F: Any, x: Any, *rest: Any) -> Any:
            return _MXNET[name](F, x, *rest)

    return Net()


_MXNET: dict[str, Any] = {
    "chain": lambda F, x, w: (
        F.tanh(F.broadcast_mul(x, w) + 1.5) * F.sigmoid(x) + F.exp(-x * x) * 0.5
    ),
    "layer_norm": lambda F, x, g, b: F.LayerNorm(x, g, b),
    "softmax": lambda F, x: F.softmax(x),
    "log_softmax": lambda F, x: F.log_softmax(x),
    "gelu": lambda F, x: F.LeakyReLU(x, act_type="gelu"),
    "masked_softmax": lambda F, x, mask: F.softmax(F.where(mask, x, F.ones_like(x) * -1e9)),
    "instance_norm": lambda F, x, g, b: F.InstanceNorm(x, g, b, eps=1e-3),
    "group_norm": lambda F, x, g, b: F.GroupNorm(x, g, b, num_groups=8, eps=1e-5),
    "prelu": lambda F, x, slopes: F.LeakyReLU(x, slopes, act_type="prelu"),
    "clip": lambda F, x: F.clip(x, a_min=-0.5, a_max=0.75),
    "gate": lambda F, x, gate: F.broadcast_mul(x, gate),
    "channel_softmax": lambda F, x: F.softmax(x, axis=1),
    "channel_norm": lambda F, x, g, b: F.LayerNorm(x, g, b, axis=1),
    "centred": lambda F, x: F.broadcast_sub(x, F.mean(x, axis=1, keepdims=True)),
}
