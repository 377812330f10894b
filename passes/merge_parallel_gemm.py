"""Compute FullyConnected layers that read the same input as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes
from graphopt.analysis.frozen import frozen_nodes
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import Shape, TensorType
from graphopt.passes.folding.build import FrozenBuilder, Refused
from graphopt.passes.folding.weights import Anchor, anchor_of, flattens
from graphopt.pipeline.base import Mode, Pass, PassContext

#: What MXNet's oneDNN backend computes in the loop of a FullyConnected that nothing else reads.
_EPILOGUES: Final = frozenset({"Activation", "LeakyReLU", "abs", "clip", "exp", "sqrt", "square"})


@dataclass(frozen=True)
class MergeParallelGemm(Pass):
    """FullyConnected layers that read the same input are one product, if that is faster.

    Their weights are concatenated along the units, so are their biases, and each layer's node
    becomes the slice of its units. The weights have to be parameters: a frozen graph concatenates
    them once. Layers are merged that agree on ``flatten`` and on the dtype and width of the weight;
    a missing bias counts as zeros.

    Whether that pays was measured on CPUs. Up to some 128 rows three layers as one run 0.97 to
    1.15 times as fast in MXNet's oneDNN executor, and 1.05 to 1.4 times in CachedOp, where a
    launch costs more. With more rows one product is no faster, while the slices copy more. Two
    layers gain hardly anything. A layer whose only reader is a function that oneDNN computes in
    the same loop, such as relu, loses up to a fifth when a slice comes between, so it stays. So
    do convolutions: merging the 1x1 branches of an Inception block cost 2 to 8 percent.

    Attributes:
        max_rows: leave layers alone whose input has more rows than this.
        min_layers: how many layers it takes at least.

    Example::

        // before
        graph net(%x: f32[8,4], param %u: f32[1,4], param %v: f32[3,4], param %w: f32[2,4]) {
          %a = FullyConnected(%x, %u) {no_bias=True, num_hidden=1} : f32[8,1]
          %b = FullyConnected(%x, %v) {no_bias=True, num_hidden=3} : f32[8,3]
          %c = FullyConnected(%x, %w) {no_bias=True, num_hidden=2} : f32[8,2]
          return %a, %b, %c
        }
        // after
        graph net(%x: f32[8,4], param %u: f32[1,4], param %v: f32[3,4], param %w: f32[2,4]) {
          %a_merged_weight = Concat(%u, %v, %w) {dim=0, num_args=3} : f32[6,4]
          %a_merged = FullyConnected(%x, %a_merged_weight) {no_bias=True, num_hidden=6} : f32[8,6]
          %a = slice_axis(%a_merged) {axis=1, begin=0, end=1} : f32[8,1]
          %b = slice_axis(%a_merged) {axis=1, begin=1, end=4} : f32[8,3]
          %c = slice_axis(%a_merged) {axis=1, begin=4, end=6} : f32[8,2]
          return %a, %b, %c
        }
    """

    name: ClassVar[str] = "merge-parallel-gemm"
    modes: ClassVar[frozenset[Mode]] = frozenset({"inference"})
    needs_frozen: ClassVar[bool] = True
    rounding: ClassVar[str] = "a wider product may round differently"

    max_rows: int = 128
    min_layers: int = 3

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Group the layers by what they read; merge each group that pays."""
        siblings = _siblings(graph)
        if not siblings:
            return graph
        frozen = set(frozen_nodes(graph))
        held = held_nodes(graph)
        merged = graph.copy()
        for layers in siblings:
            for group in _groups(graph, layers, frozen, held, cx):
                if self._pays(group, cx):
                    _merge(merged, group, frozen, cx)
        return graph if merged.is_unchanged_from(graph) else merged

    def _pays(self, group: Sequence[Anchor], cx: PassContext) -> bool:
        rows = _rows(group[0].node)
        nodes = [anchor.node for anchor in group]
        if len(group) < self.min_layers:
            cx.missed(
                f"not merged: {len(group)} layers gain too little (min_layers={self.min_layers})",
                *nodes,
            )
            return False
        if rows is None:
            cx.missed("not merged: the number of rows of their input is not known", *nodes)
            return False
        if rows > self.max_rows:
            cx.missed(
                f"not merged: with {rows} rows one product saves less than copying its parts costs"
                f" (max_rows={self.max_rows})",
                *nodes,
            )
            return False
        return True


def _siblings(graph: Graph) -> list[list[Node]]:
    """FullyConnected nodes that read the same value, where there are several; in order."""
    readers: dict[Value, list[Node]] = {}
    for node in graph:
        if canonical(node.op) == "FullyConnected":
            readers.setdefault(node.inputs[0], []).append(node)
    return [nodes for nodes in readers.values() if len(nodes) > 1]


def _groups(
    graph: Graph,
    layers: Sequence[Node],
    frozen: set[NodeId],
    held: frozenset[NodeId],
    cx: PassContext,
) -> list[list[Anchor]]:
    """Layers that one product can compute, where there are several."""
    groups: dict[object, list[Anchor]] = {}
    for node in layers:
        if node.id in frozen:
            continue
        try:
            if node.after or node.id in held:
                raise Refused("a control dependency names it")
            _check_epilogue(graph, node)
            anchor = anchor_of(graph, node, frozen)
        except Refused as refused:
            cx.missed(f"not merged: {refused}", node)
            continue
        groups.setdefault(_key(graph, anchor), []).append(anchor)
    for key, group in groups.items():
        if len(group) == 1 and len(groups) > 1:
            cx.missed(f"not merged: no other layer has {key}", group[0].node)
    return [group for group in groups.values() if len(group) > 1]


def _check_epilogue(graph: Graph, node: Node) -> None:
    readers = graph.users(node.out())
    if len(readers) == 1 and not graph.is_output(node.out()):
        reader = graph[readers[0].node]
        if canonical(reader.op) in _EPILOGUES:
            raise Refused(f"oneDNN computes {reader.name!r} ({reader.op}) together with it")


def _key(graph: Graph, anchor: Anchor) -> str:
    """What layers that are merged have in common, as a text."""
    rank = graph.type_of(anchor.node.inputs[0]).rank
    flatten = "" if rank == 2 else f", flatten={flattens(anchor.node)}"
    place = anchor.node.attrs.get("__ctx_group__")
    where = f", group {place}" if place else ""
    dtype = graph.type_of(anchor.weight).dtype
    return f"a {dtype} weight of width {anchor.shape[1]}{flatten}{where}"


def _rows(node: Node) -> int | None:
    shape = node.type.shape
    if shape is None:
        return None
    rows = [extent for extent in shape[:-1] if extent is not None]
    return math.prod(rows) if len(rows) == len(shape) - 1 else None


def _merge(graph: Graph, group: Sequence[Anchor], frozen: set[NodeId], cx: PassContext) -> None:
    """Add the merged layer and turn each of the group into the slice of its units."""
    first = group[0].node
    origin = tuple(dict.fromkeys(o for a in group for o in a.node.origin or (a.node.name,)))
    base = graph.unique_name(f"{first.name}_merged")
    build = FrozenBuilder(graph, frozen, base, origin)
    units = sum(anchor.outputs for anchor in group)
    inputs = [first.inputs[0], _concat(build, [a.weight for a in group], "weight")]
    if any(anchor.bias is not None for anchor in group):
        inputs.append(_concat(build, [_bias(build, anchor) for anchor in group], "bias"))
    shape: Shape = (*(first.type.shape or ())[:-1], units)
    attrs = first.attrs.set(num_hidden=units, no_bias=len(inputs) == 2)
    types = [TensorType(first.type.dtype, shape)]
    whole = graph.add(first.op, inputs, attrs, types, base, origin=origin)
    start = 0
    for anchor in group:
        end = start + anchor.outputs
        place = {"axis": len(shape) - 1, "begin": start, "end": end}
        _become_slice(graph, graph[anchor.node.id], whole, place)
        start = end
    cx.count("merged", len(group))
    cx.passed(f"merged into one product of {units} units", *(a.node for a in group))


def _concat(build: FrozenBuilder, parts: Sequence[Value], name: str) -> Value:
    _, *rest = build.shape(parts[0])
    length = sum(build.shape(part)[0] for part in parts)
    return build.call("Concat", parts, (length, *rest), name, dim=0, num_args=len(parts))


def _bias(build: FrozenBuilder, anchor: Anchor) -> Value:
    return anchor.bias or build.zeros(anchor.outputs, build.dtype(anchor.weight), "zeros")


def _become_slice(graph: Graph, node: Node, whole: Node, place: dict[str, int]) -> None:
    """Same id, name and users: whatever reads the layer, or returns it, need not change."""
    slice_ = node.but(op="slice_axis", inputs=(whole.out(),), attrs=Attrs(place))
    graph.update(slice_)
