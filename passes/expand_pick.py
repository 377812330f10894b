"""Picked numbers, as comparisons that kernels can compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.fusion.fuse import why_no_kernel
from graphopt.passes.fusion.positions import FLOATS, INTEGERS, LONGEST, Positions, axis_of
from graphopt.passes.fusion.region import origin_of
from graphopt.pipeline.base import Pass, PassContext

_SOFTMAX = ("log_softmax", "softmax")


@dataclass(frozen=True)
class ExpandPick(Pass):
    """What is picked of a softmax is computed with it.

    A cross entropy picks one number of each row of a ``log_softmax``. MXNet writes the whole array
    for that, and backward writes one of zeros and reads both. As a sum over ``where(position ==
    index, data, 0)`` the pick is part of the kernel, which reads its input and writes nothing else.
    Indices get no gradient, as in MXNet, and are clipped to the axis.

    Only where nothing else reads the softmax, and where kernels can be had, as the operators by
    themselves would be slower; float32 and float64.

    Example::

        // before
        graph g(%x: f32[2,3], %i: f32[2]) {
          %p = log_softmax(%x) : f32[2,3]
          %y = pick(%p, %i) {axis=1} : f32[2]
          return %y
        }
        // after
        graph g(%x: f32[2,3], %i: f32[2]) {
          %p = log_softmax(%x) : f32[2,3]
          %y_positions = constant() {data="range", dtype="float32", shape=(1, 3)} : f32[1,3]
          %i_stop = BlockGrad(%i) : f32[2]
          %i_whole = fix(%i_stop) : f32[2]
          %i_row = Reshape(%i_whole) {shape=(0, 1)} : f32[2,1]
          %y_index = clip(%i_row) {a_max=2.0, a_min=0.0} : f32[2,1]
          %y_is = broadcast_equal(%y_positions, %y_index) : f32[2,3]
          %y_zero = _zeros() {dtype="float32", shape=(1, 1)} : f32[1,1]
          %y_chosen = _npi_where(%y_is, %p, %y_zero) : f32[2,3]
          %y = sum(%y_chosen) {axis=(1,), keepdims=False} : f32[2]
          return %y
        }
    """

    name: ClassVar[str] = "expand-pick"
    rounding: ClassVar[str] = "sums of a softmax are added in another order"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace operators in place; linear."""
        found = [
            node
            for node in graph
            if canonical(node.op) == "pick" and canonical(graph[node.inputs[0].node].op) in _SOFTMAX
        ]
        if not found:
            return graph
        why = None if cx.target is None else cx.target.why_no_fused_kernels(cx.settings.device)
        if why is not None:
            cx.missed(f"pick stays: {why}", found[0])
            return graph
        held = held_nodes(graph)
        build = Positions(graph.copy())
        for node in found:
            why = _unfit(graph, node, cx.settings.device)
            if node.id in held or node.after:
                why = "a control dependency names it"
            if why is not None:
                cx.missed(f"pick stays: {why}", node)
                continue
            _replace(build, node)
            cx.passed("picks within the kernel of its softmax", node)
            cx.count("expanded")
        return graph if build.graph.is_unchanged_from(graph) else build.graph


def _unfit(graph: Graph, node: Node, device: str) -> str | None:
    data, index = (graph.type_of(value) for value in node.inputs)
    softmax = graph[node.inputs[0].node]
    if not data.is_static or not index.is_static or data.size == 0 or index.size == 0:
        return "its shape is not known"
    if data.dtype not in FLOATS or node.type.dtype != data.dtype:
        return f"it is {node.type.dtype} of {data.dtype}"
    if index.dtype not in INTEGERS and index.dtype not in FLOATS:
        return f"its indices are {index.dtype}"
    if node.attrs.get("mode", "clip") != "clip":
        return "its indices wrap"
    if node.attrs.get("axis", -1) is None:
        return "it picks of the flat array"
    axis = axis_of(node.attrs, -1, data)
    if axis != axis_of(softmax.attrs, -1, data):
        return "it picks along another axis than its softmax"
    if ((data.shape or ())[axis] or 0) > LONGEST:
        return "its rows are too long"
    if len(graph.users(node.inputs[0])) != 1 or graph.is_output(node.inputs[0]):
        return "others read the softmax, too"
    if len(softmax.inputs) != 1:
        return "its softmax has lengths"
    return why_no_kernel(graph, softmax, frozenset(), device)


def _replace(build: Positions, node: Node) -> None:
    graph, name = build.graph, node.name or node.op
    build.origin = origin_of([node])
    data, index = node.inputs
    type_ = graph.type_of(data)
    rank, dtype = type_.rank or 0, str(type_.dtype)
    axis = axis_of(node.attrs, -1, type_)
    extents = tuple(extent or 0 for extent in type_.shape or ())
    across = tuple(1 if at == axis else extent for at, extent in enumerate(extents))
    positions = build.along(type_, axis, name)
    row = build.whole(index, across, dtype)
    limits = Attrs(a_min=0.0, a_max=float(extents[axis] - 1))
    clipped = build.add("clip", (row,), limits, TensorType(dtype, across), f"{name}_index")
    is_it = build.add("broadcast_equal", (positions, clipped), Attrs(), type_, f"{name}_is")
    zero = build.filled(0.0, rank, dtype, f"{name}_zero")
    chosen = build.add("_npi_where", (is_it, data, zero), Attrs(), type_, f"{name}_chosen")
    attrs = Attrs(axis=(axis,), keepdims=node.attrs.flag("keepdims"))
    graph.update(node.but(op="sum", inputs=(chosen,), attrs=attrs))
