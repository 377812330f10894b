"""Lengths of rows, as comparisons that kernels can compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.fusion.fuse import why_no_kernel
from graphopt.passes.fusion.operators import single
from graphopt.passes.fusion.positions import INTEGERS, LONGEST, Positions, axis_of
from graphopt.passes.fusion.region import origin_of
from graphopt.pipeline.base import Pass, PassContext

_FLOATS: Final = ("float32", "float64")


@dataclass(frozen=True)
class ExpandLengths(Pass):
    """What rows have lengths for is chosen by comparing positions with them.

    MXNet computes ``softmax`` with ``use_length`` and ``SequenceMask`` by loops of their own, one
    number after the other: attention with lengths spends more on them than on its products. As
    ``where(position < length, data, value)`` they are part of the kernels around them. A softmax
    sees -inf behind the end of a row, and its result there is zero, also in a row without elements,
    of which it has none. Lengths get no gradient, as in MXNet.

    Only where kernels can be had, as the operators by themselves would be slower; float32 and
    float64.

    Example::

        // before
        graph g(%x: f32[2,3], %n: i32[2]) {
          %y = softmax(%x, %n) {use_length=True} : f32[2,3]
          return %y
        }
        // after
        graph g(%x: f32[2,3], %n: i32[2]) {
          %n_stop = BlockGrad(%n) : i32[2]
          %n_cast = Cast(%n_stop) {dtype="float32"} : f32[2]
          %n_row = Reshape(%n_cast) {shape=(0, 1)} : f32[2,1]
          %y_positions = constant() {data="range", dtype="float32", shape=(1, 3)} : f32[1,3]
          %y_keep = broadcast_lesser(%y_positions, %n_row) : f32[2,3]
          %y_fill = _full() {dtype="float32", shape=(1, 1), value=-inf} : f32[1,1]
          %y_data = _npi_where(%y_keep, %x, %y_fill) : f32[2,3]
          %y_softmax = softmax(%y_data) : f32[2,3]
          %y_zero = _zeros() {dtype="float32", shape=(1, 1)} : f32[1,1]
          %y = _npi_where(%y_keep, %y_softmax, %y_zero) : f32[2,3]
          return %y
        }
    """

    name: ClassVar[str] = "expand-lengths"
    rounding: ClassVar[str] = "sums of a softmax are added in another order"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace operators in place; linear."""
        held = held_nodes(graph)
        found = [
            node
            for node in graph
            if canonical(node.op) in ("softmax", "SequenceMask") and len(node.inputs) > 1
        ]
        if not found:
            return graph
        why = None if cx.target is None else cx.target.why_no_fused_kernels(cx.settings.device)
        if why is not None:
            cx.missed(f"lengths stay: {why}", found[0])
            return graph
        build = Positions(graph.copy())
        for node in found:
            why = _unfit(graph, node, cx.settings.device)
            if node.id in held or node.after:
                why = "a control dependency names it"
            if why is not None:
                cx.missed(f"its lengths stay: {why}", node)
                continue
            _replace(build, node)
            cx.count("expanded")
        return graph if build.graph.is_unchanged_from(graph) else build.graph


def _unfit(graph: Graph, node: Node, device: str) -> str | None:
    data, length = (graph.type_of(value) for value in node.inputs)
    if not data.is_static or not length.is_static or data.size == 0:
        return "its shape is not known"
    if data.dtype not in _FLOATS or node.type.dtype != data.dtype:
        return f"it is {node.type.dtype} of {data.dtype}"
    if length.dtype not in INTEGERS and length.dtype not in _FLOATS:
        return f"its lengths are {length.dtype}"
    if _extents(data)[_axis(node, data)] > LONGEST:
        return "its rows are too long"
    if canonical(node.op) == "SequenceMask":
        return None
    return why_no_kernel(
        graph, node.but(inputs=node.inputs[:1], attrs=_plain(node)), frozenset(), device
    )


def _plain(node: Node) -> Attrs:
    return Attrs({key: value for key, value in node.attrs.items() if key != "use_length"})


def _extents(type_: TensorType) -> tuple[int, ...]:
    return tuple(extent or 0 for extent in type_.shape or ())


def _axis(node: Node, data: TensorType) -> int:
    return axis_of(node.attrs, -1 if canonical(node.op) == "softmax" else 0, data)


def _replace(build: Positions, node: Node) -> None:
    graph, name = build.graph, node.name or node.op
    build.origin = origin_of([node])
    data = node.inputs[0]
    type_ = graph.type_of(data)
    rank, dtype = type_.rank or 0, str(type_.dtype)
    keep = _keep(build, node, name)
    chosen = node.but(op="_npi_where", attrs=Attrs(), types=node.types[:1])
    if canonical(node.op) == "SequenceMask":
        fill = build.filled(single(node.attrs, "value", 0.0), rank, dtype, f"{name}_fill")
        graph.update(chosen.but(inputs=(keep, data, fill)))
        return
    fill = build.filled(-math.inf, rank, dtype, f"{name}_fill")
    shown = build.add("_npi_where", (keep, data, fill), Attrs(), type_, f"{name}_data")
    found = build.add("softmax", (shown,), _plain(node), type_, f"{name}_softmax")
    zero = build.filled(0.0, rank, dtype, f"{name}_zero")
    graph.update(chosen.but(inputs=(keep, found, zero)))


def _keep(build: Positions, node: Node, name: str) -> Value:
    """1 where a position lies before the end of its row, else 0.

    Made anew for each reader, as each kernel computes it faster than it would load it.
    """
    data, lengths = node.inputs
    type_ = build.graph.type_of(data)
    extents, axis = _extents(type_), _axis(node, type_)
    if canonical(node.op) == "softmax":
        across = tuple(1 if at == axis else e for at, e in enumerate(extents))
    else:
        across = tuple(e if at == 1 - axis else 1 for at, e in enumerate(extents))
    shape = tuple(max(e, 1) if at == axis else across[at] for at, e in enumerate(extents))
    limits = build.whole(lengths, across, str(type_.dtype))
    inputs = (build.along(type_, axis, name), limits)
    kept = TensorType(type_.dtype, shape)
    return build.add("broadcast_lesser", inputs, Attrs(), kept, f"{name}_keep")
