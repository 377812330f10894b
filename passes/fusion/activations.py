"""Activations as kernel instructions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.kernels.spec import Arg
from graphopt.passes.fusion.operators import Axes, Build, Emit, instruction, single


def check_leaky_relu(node: Node, graph: Graph) -> str | None:
    """Why no instructions compute what ``LeakyReLU`` does, if there are none."""
    kind = node.attrs.get("act_type") or "leaky"
    if kind not in LEAKY:
        return f"act_type={kind!r} has no translation"
    if kind in ("leaky", "elu") and single(node.attrs, "slope", 0.25) < 0:
        return "with a negative slope its gradient depends on how MXNet was built"
    if kind == "prelu" and prelu_axes(node, graph) is None:
        return "its slopes run along other axes than the channels"
    return None


def prelu_axes(node: Node, graph: Graph) -> Axes | None:
    """For the slopes of prelu, the axes of the data that they run along."""
    data, gamma = (graph.type_of(value).shape for value in node.inputs[:2])
    if data is None or gamma is None or len(gamma) > min(len(data), 2):
        return None
    first = min(len(data), 2) - len(gamma)
    pairs = list(enumerate(gamma, first))
    if any(extent not in (1, data[axis]) for axis, extent in pairs):
        return None
    return tuple(axis if extent == data[axis] else None for axis, extent in pairs)


def softsign(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    """The quotient of x and one more than its size."""
    # The quotient rule would take the difference of two nearly equal numbers for large x.
    below = emit("stop", emit("add", emit("abs", args[0]), 1.0))
    return emit("div", emit("scale_gradient", args[0], emit("recip", below)), below)


def activation(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    """The instructions of ``Activation``."""
    return ACTIVATIONS[str(attrs.get("act_type"))](emit, args, attrs)


def _relu(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    is_mxnets = attrs.get("dtype") in ("float16", "float64")  # oneDNN gives NaN the gradient 0
    return emit("relu_nan" if is_mxnets else "relu", args[0])


def leaky_relu(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    """The instructions of ``LeakyReLU``."""
    return LEAKY[str(attrs.get("act_type") or "leaky")](emit, args, attrs)


def _leaky(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    slope = single(attrs, "slope", 0.25)
    if slope == 0:
        return emit("relu", args[0])
    below = emit("mul", args[0], slope)
    if attrs.get("dtype") == "float32":  # by oneDNN, which gives NaN the gradient 1
        return emit("where", emit("le", args[0], 0.0), below, args[0])
    return emit("where", emit("gt", args[0], 0.0), args[0], below)


def _prelu(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    # Zero above keeps an infinite x out of the gradient of the slopes.
    is_above = emit("gt", args[0], 0.0)
    below = emit("mul", emit("where", is_above, 0.0, args[0]), args[1])
    return emit("where", is_above, args[0], below)


def _elu(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    # Zero above, since an infinite exponential times a gradient of zero is NaN.
    def curve(low: Arg) -> Arg:
        return emit("mul", emit("expm1", low), single(attrs, "slope", 0.25))

    if attrs.get("dtype") == "float32":  # by oneDNN, which gives NaN the gradient 1
        is_below = emit("le", args[0], 0.0)
        return emit("where", is_below, curve(emit("where", is_below, args[0], 0.0)), args[0])
    is_above = emit("gt", args[0], 0.0)
    return emit("where", is_above, args[0], curve(emit("where", is_above, 0.0, args[0])))


# MXNet holds both in float32.
_SELU_ALPHA: Final = float(np.float32(1.6732632423543772))
_SELU_LAMBDA: Final = float(np.float32(1.0507009873554805))


def _selu(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    # Below 0 MXNet's slope is lambda * alpha * (1 + lambda * expm1(x)), with one lambda too many.
    is_above = emit("gt", args[0], 0.0)
    low = emit("where", is_above, 0.0, args[0])
    curve = emit("expm1", low)
    slope = emit("add", emit("mul", curve, _SELU_LAMBDA), 1.0)
    below = emit("mul", emit("with_slope", curve, low, slope), _SELU_ALPHA)
    return emit("mul", emit("where", is_above, args[0], below), _SELU_LAMBDA)


def _gelu(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    tail = emit("add", emit("erf", emit("mul", args[0], math.sqrt(0.5))), 1.0)
    return emit("mul", emit("mul", args[0], 0.5), tail)


ACTIVATIONS: Final[dict[str, Build]] = {
    "relu": _relu,
    "sigmoid": instruction("sigmoid"),
    "tanh": instruction("tanh"),
    "softrelu": instruction("softplus"),
    "softsign": softsign,
}
LEAKY: Final[dict[str, Build]] = {
    "leaky": _leaky,
    "elu": _elu,
    "selu": _selu,
    "gelu": _gelu,
    "prelu": _prelu,
}
