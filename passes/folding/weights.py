"""Anchors whose weight can take up a factor per channel, on their output or on their input side.

The weight is seen under a shape (``view``) in which the channels have axes of their own, and the
factor under one (``factor``) that broadcasts against it: groups and flattened inputs then need no
cases of their own.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.passes.folding.build import (
    Extents,
    Factor,
    FrozenBuilder,
    Refused,
    check_operand,
)

ANCHORS: Final = frozenset({"Convolution", "Convolution_v1", "Deconvolution", "FullyConnected"})


@dataclass(frozen=True)
class Side:
    """Where one side's channels lie in the weight; ``kept`` leading axes number the outputs."""

    view: Extents
    factor: Extents
    kept: int = 1


@dataclass(frozen=True)
class Anchor:
    """A node with a weight; ``weight`` has ``shape``, ``outputs`` are its output channels."""

    node: Node
    op: str
    weight: Value
    shape: Extents
    bias: Value | None
    outputs: int
    groups: int = 1

    @property
    def is_channels_last(self) -> bool:
        """Whether the layout puts the channels behind the spatial axes."""
        return str(self.node.attrs.get("layout")).endswith("C")

    @property
    def has_padding(self) -> bool:
        """Whether zeros are put around the input."""
        pad = self.node.attrs.get("pad") or ()
        return any(pad) if isinstance(pad, tuple) else bool(pad)

    def output_axis(self, rank: int) -> int:
        """The channel axis of the output, which has ``rank`` axes."""
        flat = self.op == "FullyConnected" and not flattens(self.node)
        return rank - 1 if flat or self.is_channels_last else 1

    def output_side(self) -> Side:
        """How a factor per output channel meets the weight."""
        first, *rest = self.shape
        ones = (1,) * len(rest)
        if self.op != "Deconvolution":
            return Side(self.shape, (first, *ones))
        if self.groups == 1:
            return Side(self.shape, (1, rest[0], *ones[1:]))
        view = (self.groups, first // self.groups, *rest)
        return Side(view, (self.groups, 1, rest[0], *ones[1:]))

    def input_axis(self, rank: int) -> int:
        """The channel axis of the input, which has ``rank`` axes; any where it is flattened."""
        flat = self.op == "FullyConnected" and not flattens(self.node)
        return rank - 1 if flat else 1

    def input_side(self, data: Extents, axis: int) -> Side:
        """How a factor per channel, ``axis`` of the data's shape, meets the weight.

        Raises:
            Refused: the channels of the data are no channels of the weight.
        """
        if self.op == "FullyConnected":
            return self._flat_side(data, axis)
        if axis != 1 or self.is_channels_last:
            raise Refused(f"axis {axis} holds no channels of {self.node.name!r}")
        first, second, *window = self.shape
        ones = (1,) * len(window)
        if self.op == "Deconvolution":
            return Side(self.shape, (first, 1, *ones))
        if self.groups == 1:
            return Side(self.shape, (1, second, *ones))
        view = (self.groups, first // self.groups, second, *window)
        return Side(view, (self.groups, 1, second, *ones), 2)

    def _flat_side(self, data: Extents, axis: int) -> Side:
        start = 1 if flattens(self.node) else len(data) - 1
        if not start <= axis < len(data):
            raise Refused(f"axis {axis} is not summed over by {self.node.name!r}")
        before, after = math.prod(data[start:axis]), math.prod(data[axis + 1 :])
        if before == after == 1:
            return Side(self.shape, (1, data[axis]))
        return Side((self.outputs, before, data[axis], after), (1, 1, data[axis], 1))


def flattens(node: Node) -> bool:
    """Whether a FullyConnected makes its input two-dimensional first."""
    return _flag(node, "flatten", default=True)


def anchor_of(graph: Graph, node: Node, frozen: Collection[NodeId]) -> Anchor:
    """The node, whose operator is one of `ANCHORS`, as an anchor.

    Raises:
        Refused: its weight cannot take up anything.
    """
    op = canonical(node.op)
    biased = not _flag(node, "no_bias", default=op == "Deconvolution")
    for value in node.inputs[1:]:
        check_operand(graph, value, frozen)
    shape = tuple(extent or 0 for extent in graph.type_of(node.inputs[1]).shape or ())
    groups = int(node.attrs.get("num_group", 1))
    outputs = shape[1] * groups if op == "Deconvolution" else shape[0]
    anchor = Anchor(
        node, op, node.inputs[1], shape, node.inputs[2] if biased else None, outputs, groups
    )
    if op == "Deconvolution" and anchor.is_channels_last:
        raise Refused(f"{node.name!r} has layout {node.attrs['layout']}")
    return anchor


def scale_weight(build: FrozenBuilder, weight: Value, side: Side, scale: Factor) -> Value:
    """The weight times the factor of each channel of one side."""
    if scale is None:
        return weight
    if isinstance(scale, float):
        return build.scalar("_mul_scalar", weight, scale, "weight")
    seen = build.reshape(weight, side.view)
    scaled = build.binary("broadcast_mul", seen, _shaped(build, scale, side), "weight")
    return build.reshape(scaled, build.shape(weight))


def sum_shift(build: FrozenBuilder, weight: Value, side: Side, shift: Value | float) -> Value:
    """What a shift of the input adds to each output: the weight times it, summed per output."""
    if isinstance(shift, float):
        total = build.sum(build.reshape(weight, side.view), side.kept, "sum")
        return build.scalar("_mul_scalar", _flat(build, total), shift, "shift")
    seen = build.reshape(weight, side.view)
    moved = build.binary("broadcast_mul", seen, _shaped(build, shift, side), "moved")
    return _flat(build, build.sum(moved, side.kept, "shift"))


def scale_bias(build: FrozenBuilder, bias: Value | None, scale: Factor) -> Value | None:
    """The bias times the factor of each output; ``None`` stands for zero."""
    if bias is None or scale is None:
        return bias
    if isinstance(scale, float):
        return build.scalar("_mul_scalar", bias, scale, "scaled_bias")
    return build.binary("broadcast_mul", bias, scale, "scaled_bias")


def add_shift(
    build: FrozenBuilder, bias: Value | None, shift: Factor, length: int, dtype: str
) -> Value | None:
    """The bias plus the shift of each output; ``None`` stands for zero."""
    if shift is None:
        return bias
    if bias is None and not isinstance(shift, float) and build.shape(shift) == (length,):
        return shift
    start = bias or build.zeros(length, dtype, "zeros")
    if isinstance(shift, float):
        return build.scalar("_plus_scalar", start, shift, "bias")
    return build.binary("broadcast_add", start, shift, "bias")


def work_dtype(build: FrozenBuilder, weight: Value) -> str:
    """The dtype to fold in: a sum of thousands of terms would lose too much in half precision."""
    dtype = build.dtype(weight)
    return "float32" if dtype == "float16" else dtype


def _shaped(build: FrozenBuilder, vector: Value, side: Side) -> Value:
    single = build.shape(vector) == (1,)
    return build.reshape(vector, (1,) * len(side.view) if single else side.factor)


def _flat(build: FrozenBuilder, value: Value) -> Value:
    return build.reshape(value, (math.prod(build.shape(value)),))


def _flag(node: Node, key: str, *, default: bool) -> bool:
    return str(node.attrs.get(key, default)).lower() in ("true", "1")
