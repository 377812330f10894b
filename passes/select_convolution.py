"""The faster of two algorithms for every convolution of a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.kernels.convolutions.marked import DIRECTIONS, MARK, Times, mark, why_unfit
from graphopt.kernels.convolutions.single import Layer, layer_of
from graphopt.kernels.convolutions.windows import is_convolution, why_not
from graphopt.pipeline.base import Mode, Pass, PassContext

_TOLD = {"forward": "forward", "data": "gradient of images", "weight": "gradient of filters"}


@dataclass(frozen=True)
class SelectConvolution(Pass):
    """Convolutions of 3x3 pixels are computed by Winograd's algorithm where that is faster.

    In training: a convolution, the gradient of its images and that of its filters are each timed
    by MXNet's oneDNN, which multiplies directly, and by Winograd's minimal filtering with tiles of
    4x4, which takes a quarter of the multiplications (Lavin and Gray, Fast Algorithms for
    Convolutional Neural Networks, 2016). What is faster is written into the attribute
    ``__winograd__``; without graphopt MXNet pays no heed to it. Each distinct layer is timed once
    on a machine. Only float32 on the CPU, one group, strides of one, whole blocks of channels.

    Args:
        min_gain: how many times as fast Winograd's algorithm, which rounds more, has to be.

    Example::

        // before
        graph net(%x: f32[8,64,56,56], param %w: f32[64,64,3,3]) {
          %c = Convolution(%x, %w) {kernel=(3, 3), no_bias=True, num_filter=64, pad=(1, 1)}
              : f32[8,64,56,56]
          return %c
        }
        // after
        graph net(%x: f32[8,64,56,56], param %w: f32[64,64,3,3]) {
          %c = Convolution(%x, %w) {__winograd__="forward data weight", kernel=(3, 3),
              no_bias=True, num_filter=64, pad=(1, 1)} : f32[8,64,56,56]
          return %c
        }
    """

    name: ClassVar[str] = "select-convolution"
    modes: ClassVar[frozenset[Mode]] = frozenset({"training"})
    cpu_only: ClassVar[str] = "it compares convolutions on CPUs only"
    rounding: ClassVar[str] = "Winograd's algorithm rounds more"

    min_gain: float = 1.1

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
            why = why_not(graph, node)
            layer = None if why else layer_of(graph, node)
            why = why if layer is None else why_unfit(layer, cx.target.block_lanes())
            if layer is None or why is not None:
                cx.missed(f"it is computed directly: {why}", node)
                continue
            self._mark(edited, node, layer, cx)
        return edited

    def _mark(self, edited: Graph, node: Node, layer: Layer, cx: PassContext) -> None:
        times = _measured(layer, cx)
        chosen = tuple(d for d in DIRECTIONS if times[d][0] >= self.min_gain * times[d][1])
        told = ", ".join(
            f"{_TOLD[d]} {times[d][1]:.2f} ms for {times[d][0]:.2f} ms" for d in DIRECTIONS
        )
        if not chosen:
            cx.note(f"Winograd's algorithm is no faster: {told}", node)
            return
        edited.update(node.but(attrs=node.attrs.set(**{MARK: mark(chosen)})))
        cx.passed(f"by Winograd's algorithm: {told}", node)
        cx.count("convolutions")
        cx.count("directions", len(chosen))


def _measured(layer: Layer, cx: PassContext) -> Times:
    target = cx.target
    assert target is not None
    found: Times = target.measured_once(
        ("directions", str(layer)), lambda: target.direction_times_ms(layer)
    )
    return found
