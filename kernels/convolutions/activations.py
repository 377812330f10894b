"""What steps of a region do last: functions of one number, and the operators that they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from graphopt.analysis.rounding import cancels
from graphopt.ir.attrs import Attrs
from graphopt.ir.node import Node
from graphopt.ir.ops import canonical

#: Operators that a step computes by itself where no other step takes them along: worth it between
#: others only.
_LIGHT: Final = (
    "sigmoid",
    "tanh",
    "hard_sigmoid",
    "_plus_scalar",
    "_minus_scalar",
    "_rminus_scalar",
    "_mul_scalar",
    "_div_scalar",
    "negative",
)
#: What may be a function of each number; :func:`unary` tells which.
UNARY: Final = ("Activation", "relu", "LeakyReLU", "clip", *_LIGHT)
_LEAKY: Final = ("leaky", "prelu")

#: In the order of ``ActivationKind`` in kernels/bridge/blocked.h.
Function = Literal[
    "none",
    "relu",
    "clip",
    "leaky",
    "sigmoid",
    "tanh",
    "softplus",
    "tanh-softplus",
    "normal",
    "elu",
]
#: Those of ``scale * x + shift``, without bounds.
_CURVES: Final = get_args(Function)[4:]
#: Klambauer et al., "Self-Normalizing Neural Networks", 2017.
_SELU_SLOPE: Final = 1.6732632423543772848170429916717
_SELU_SCALE: Final = 1.0507009873554804934193349852946
#: What ``act_type`` of an Activation is here, but for ``relu``; and operators of their own.
_ACT_TYPES: Final[dict[str, Function]] = {
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "softrelu": "softplus",
}


@dataclass(frozen=True)
class Activation:
    """A function of each number x.

    Attributes:
        kind: ``relu``; ``leaky``, where numbers that are not positive are multiplied by ``low``, or
            by a slope for each channel; ``clip``, of ``scale * x + shift`` to ``low`` and ``high``;
            ``sigmoid``, ``tanh``, ``softplus``, the tanh of that, and ``normal``, the share of a
            normal distribution below, of ``scale * x + shift`` each; ``elu``, where of what is not
            positive exp - 1 times ``low`` is taken, and all that times ``high``.
        gated: whether x is multiplied by what that gives.
    """

    kind: Function = "none"
    low: float = 0.0
    high: float = 0.0
    scale: float = 1.0
    shift: float = 0.0
    gated: bool = False


def unary(node: Node) -> Activation | None:
    """What a node of one operand does to each number, or ``None`` if it is nothing like that.

    The slopes of a ``prelu`` are its second operand.
    """
    op, attrs = canonical(node.op), node.attrs
    kind = attrs.get("act_type")
    if op == "relu" or (op == "Activation" and kind == "relu"):
        return Activation("relu")
    if op in ("sigmoid", "tanh"):
        return Activation(_ACT_TYPES[op])
    if op == "Activation":
        return Activation(_ACT_TYPES[str(kind)]) if kind in _ACT_TYPES else None
    if op == "LeakyReLU":
        return _leaky(str(kind or "leaky"), _real(attrs, "slope", 0.25))
    if op == "clip":
        low, high = _real(attrs, "a_min", 0.0), _real(attrs, "a_max", 0.0)
        return _clip(low, high) if low <= high else None
    if op == "hard_sigmoid":
        return _clip(0.0, 1.0, _real(attrs, "alpha", 0.2), _real(attrs, "beta", 0.5))
    return _affine(op, attrs)


def is_light(node: Node) -> bool:
    """Whether a node is worth being computed in a region between other steps only."""
    found = unary(node)
    return (found is not None and found.kind in _CURVES) or canonical(node.op) in _LIGHT


def then(first: Activation, second: Activation) -> Activation | None:
    """One after the other, if that is one, too.

    It rounds otherwise: the factors of both are multiplied before.
    """
    if first.kind == "none":
        return second
    if first.kind == "softplus" and not first.gated and second == Activation("tanh"):
        return replace(first, kind="tanh-softplus")
    first, second = _as_clip(first), _as_clip(second)
    if first.kind != "clip" or first.gated or second.gated or second.scale == 0:
        return None
    scale, shift = second.scale, second.shift
    if cancels(first.shift * scale, shift):
        return None  # rounding may be what they are for
    if second.kind in _CURVES:
        if not math.isinf(first.low) or not math.isinf(first.high):
            return None
        return replace(second, scale=first.scale * scale, shift=first.shift * scale + shift)
    if second.kind != "clip":
        return None
    ends = sorted((first.low * scale + shift, first.high * scale + shift))
    low, high = (min(max(end, second.low), second.high) for end in ends)
    return _clip(low, high, first.scale * scale, first.shift * scale + shift)


def gated(gate: Activation) -> Activation | None:
    """The product of x with what a function makes of it, if that is one."""
    gate = _as_clip(gate)
    if gate.gated:
        return None
    return replace(gate, gated=True) if gate.kind in ("clip", *_CURVES) else None


def simplest(found: Activation) -> Activation:
    """The same, as ``relu`` if it is that."""
    return Activation("relu") if found == _clip(0.0, math.inf) else found


def _leaky(kind: str, slope: float) -> Activation | None:
    if kind in _LEAKY:
        return Activation("leaky", slope)
    if kind == "gelu":
        return Activation("normal", gated=True)
    if kind == "elu":
        return Activation("elu", slope, 1.0)
    return Activation("elu", _SELU_SLOPE, _SELU_SCALE) if kind == "selu" else None


def _as_clip(found: Activation) -> Activation:
    return _clip(0.0, math.inf) if found.kind == "relu" else found


def _clip(low: float, high: float, scale: float = 1.0, shift: float = 0.0) -> Activation:
    return Activation("clip", low, high, scale, shift)


def _affine(op: str, attrs: Attrs) -> Activation | None:
    number = _real(attrs, "scalar", 0.0)
    if op == "_div_scalar" and number == 0:
        return None
    found = {
        "_plus_scalar": (1.0, number),
        "_minus_scalar": (1.0, -number),
        "_rminus_scalar": (-1.0, number),
        "_mul_scalar": (number, 0.0),
        "_div_scalar": (1 / (number or 1), 0.0),
        "negative": (-1.0, 0.0),
    }.get(op)
    if found is None or not all(map(math.isfinite, found)):
        return None
    return _clip(-math.inf, math.inf, *found)


def _real(attrs: Attrs, name: str, default: float) -> float:
    found = attrs.get(name)
    return default if found in (None, "None") else float(str(found))
