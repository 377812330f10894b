"""The fastest algorithm for every convolution of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.kernels.convolutions.marked import (
    COLUMNS,
    DIRECTIONS,
    MARK,
    MXNET,
    PAIRED_WINOGRAD4,
    WINOGRAD4,
    Times,
    Ways,
    by_columns,
    mark,
    ways,
    why_unfit,
)
from graphopt.kernels.convolutions.single import Layer, layer_along_axis, layer_of
from graphopt.kernels.convolutions.spec import DIRECT, PAIRED, WINOGRAD, is_paired
from graphopt.kernels.convolutions.windows import is_convolution, why_not
from graphopt.kernels.products import IN_PAIRS
from graphopt.pipeline.base import Mode, Pass, PassContext

_TOLD: Final = {
    "forward": "forward",
    "data": "gradient of images",
    "weight": "gradient of filters",
}
_NAMES: Final = {
    WINOGRAD4: "Winograd's algorithm",
    PAIRED_WINOGRAD4: "Winograd's algorithm in pairs",
    PAIRED: "pairs",
    DIRECT: "kernels for groups",
    COLUMNS: "columns",
}


@dataclass(frozen=True)
class SelectConvolution(Pass):
    """Convolutions are computed as is fastest, by MXNet or by algorithms of ours.

    In training: a convolution, the gradient of its images and that of its filters are each timed
    by MXNet's oneDNN, which multiplies directly, and otherwise: of 3x3 pixels by Winograd's minimal
    filtering with tiles of 4x4, which takes a quarter of the multiplications (Lavin and Gray, Fast
    Algorithms for Convolutional Neural Networks, 2016); of one pixel, and by Winograd's too, with
    products in pairs, on processors that add while they multiply (Winograd, A new algorithm for
    inner product, 1968); of 3x3 pixels in groups of 2, 4 or 8 channels, by kernels for these, and
    the gradient of depthwise filters of 3, 5 or 7 pixels along a side, by another one. These are
    for whole blocks of channels, and strides of one where filters have 3x3 pixels and are in one
    group. Convolutions of one group whose channels or filters are no whole blocks, and those along
    one axis, are products with columns of what filters see (Chellapilla, Puri and Simard, High
    Performance Convolutional Neural Networks for Document Processing, 2006), in inference too. What
    is faster is written into the attribute ``__algorithms__``; without graphopt MXNet pays no heed
    to it. Each distinct layer is timed once on a machine. Only float32 on the CPU.

    Args:
        min_gain: how many times as fast as MXNet's another algorithm, which rounds more, has to be.
        winograd: consider Winograd's algorithm.
        paired: consider products in pairs.
        columns: consider products with columns.

    Example::

        // before
        graph net(%x: f32[8,64,56,56], param %w: f32[64,64,3,3]) {
          %c = Convolution(%x, %w) {kernel=(3, 3), no_bias=True, num_filter=64, pad=(1, 1)}
              : f32[8,64,56,56]
          return %c
        }
        // after
        graph net(%x: f32[8,64,56,56], param %w: f32[64,64,3,3]) {
          %c = Convolution(%x, %w) {
              __algorithms__="forward:winograd4 data:winograd4 weight:winograd4", kernel=(3, 3),
              no_bias=True, num_filter=64, pad=(1, 1)} : f32[8,64,56,56]
          return %c
        }
    """

    name: ClassVar[str] = "select-convolution"
    modes: ClassVar[frozenset[Mode]] = frozenset({"training", "inference"})
    cpu_only: ClassVar[str] = "it compares convolutions on CPUs only"
    rounding: ClassVar[str] = "Winograd's algorithm and products in pairs round more"

    min_gain: float = 1.05
    winograd: bool = True
    paired: bool = True
    columns: bool = True

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Mark nodes in place; linear besides the measuring."""
        found = [node for node in graph if is_convolution(node)]
        if cx.target is None or not found:
            return graph
        why = cx.target.why_no_kernels(cx.settings.device)
        if why is not None:
            cx.missed(f"convolutions stay as they are: {why}", found[0])
            return graph
        edited, held = graph.copy(), held_nodes(graph)
        for node in found:
            if node.id in held or not node.inputs:
                continue
            layer, possible = self._layer(graph, node, cx)
            if isinstance(possible, str):
                if cx.settings.mode == "training":
                    cx.missed(f"it is computed directly: {possible}", node)
            elif layer is not None:
                self._mark(edited, node, _measured(layer, node, possible, cx), cx)
        return edited

    def _layer(self, graph: Graph, node: Node, cx: PassContext) -> tuple[Layer | None, Ways | str]:
        """What a node is, and how else it can be computed, or why it cannot."""
        target, is_training = cx.target, cx.settings.mode == "training"
        assert target is not None
        layer, why = layer_along_axis(graph, node), None
        if layer is None:
            why = why_not(graph, node)
            layer = None if why else layer_of(graph, node)
        if layer is None:
            return None, str(why)
        lanes = target.block_lanes()
        directions = by_columns(layer, lanes) if self.columns else ()
        if not is_training:
            directions = directions[:1] if directions == DIRECTIONS else ()
        if directions:
            return layer, dict.fromkeys(directions, (COLUMNS,))
        why = "it goes along one axis" if layer.axes == 1 else why_unfit(layer, lanes)
        if why is not None or not is_training:
            return layer, why or "regions are for it"
        possible = self._ways(layer, target.dense_means() == IN_PAIRS)
        return layer, possible if any(possible.values()) else "there is no other way for it here"

    def _ways(self, layer: Layer, has_pairs: bool) -> Ways:
        return {
            direction: tuple(name for name in names if self.winograd or name not in WINOGRAD)
            for direction, names in ways(layer, has_pairs=has_pairs and self.paired).items()
        }

    def _mark(self, edited: Graph, node: Node, times: Times, cx: PassContext) -> None:
        chosen = {direction: self._fastest(times[direction]) for direction in times}
        told = ", ".join(
            _told(direction, chosen[direction], times[direction]) for direction in times
        )
        if set(chosen.values()) == {MXNET}:
            cx.note(f"no algorithm is faster than MXNet's: {told}", node)
            return
        if node.attrs.get(MARK) == mark(chosen):
            return  # by an earlier run
        edited.update(node.but(attrs=node.attrs.set(**{MARK: mark(chosen)})))
        cx.passed(told, node)
        cx.count("convolutions")
        names = [name for name in chosen.values() if name != MXNET]
        cx.count("directions", len(names))
        cx.count("by Winograd", sum(name in WINOGRAD for name in names))
        cx.count("in pairs", sum(map(is_paired, names)))
        cx.count("by columns", names.count(COLUMNS))

    def _fastest(self, times: Mapping[str, float]) -> str:
        """Of a direction, whose other ways round more than MXNet's."""
        best = min((name for name in times if name != MXNET), key=times.__getitem__)
        return best if times[MXNET] >= self.min_gain * times[best] else MXNET


def _told(direction: str, chosen: str, times: Mapping[str, float]) -> str:
    """What became of a direction, and why."""
    by = {name: f"{_NAMES[name]} {took:.2f} ms" for name, took in times.items() if name != MXNET}
    if chosen == MXNET:
        return f"{_TOLD[direction]} by MXNet {times[MXNET]:.2f} ms ({', '.join(by.values())})"
    return f"{_TOLD[direction]} by {by[chosen]} (MXNet {times[MXNET]:.2f})"


def _measured(layer: Layer, node: Node, possible: Ways, cx: PassContext) -> Times:
    target = cx.target
    assert target is not None
    names = [f"{direction}:{','.join(names)}" for direction, names in possible.items()]
    found: Times = target.measured_once(
        ("directions", str(layer), *names),
        lambda: target.direction_times_ms(layer, possible),
        (node.name, *names),
    )
    return found
