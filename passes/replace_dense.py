"""Dense layers that are trained, by products that are faster than MXNet's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import DENSE, Node, NodeId
from graphopt.ir.ops import canonical
from graphopt.passes.pack_products import alone, not_ours, problem_of
from graphopt.passes.select_gemm import Problem, as_timed, of_so_many
from graphopt.pipeline.base import Pass, PassContext, Target
from graphopt.pipeline.remarks import in_ms

#: Rows below which most of a tile would be empty.
_LEAST_ROWS: Final = 32


@dataclass(frozen=True)
class ReplaceDense(Pass):
    """Large FullyConnected layers, forward and backward, are products of our own where faster.

    Some processors multiply small bfloat16 matrices sixteen times as fast as vectors multiply
    float32 (AMX). A float32 is the sum of three bfloat16, and six products of those are a product
    of float32 to its last digit, with less error than the usual sum; what is left of the speed is
    one and a half times MXNet's. With ``GRAPHOPT_AMX=fp16`` and a unit that multiplies float16
    two parts and three products do, at twice MXNet's speed and more. AMD's Zen processors add while
    they multiply; with AVX-512 two terms of a sum take one multiplication, which makes 1.2 to 1.4
    times MXNet's speed. Each distinct shape is timed once on a machine, forward and backward, and
    replaced where that is ``min_gain`` times as fast. Only float32 of static shape on the CPU.

    In no named pipeline, since its result depends on the machine: lowering runs it on graphs that
    are not frozen, and ``explain()`` tells what it chose. ``GRAPHOPT_AMX=0`` in the environment
    leaves the unit unused, ``GRAPHOPT_PAIRED=0`` the pairs.

    Source: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
    Higher-Precision Computations", 2019; Winograd, "A New Algorithm for Inner Product", 1968.

    Args:
        min_mega_macs: millions of multiplications below which a layer is left alone.
        min_gain: how many times as fast ours has to be.

    Example::

        // before
        graph net(%x: f32[1024,768], param %w: f32[768,768], param %b: f32[768]) {
          %fc = FullyConnected(%x, %w, %b) {num_hidden=768} : f32[1024,768]
          return %fc
        }
        // after
        graph net(%x: f32[1024,768], param %w: f32[768,768], param %b: f32[768]) {
          %fc = graphopt_dense(%x, %w, %b) {num_hidden=768} : f32[1024,768]
          return %fc
        }
    """

    name: ClassVar[str] = "replace-dense"
    cpu_only: ClassVar[str] = "kernels run on CPUs only so far"
    rounding: ClassVar[str] = "its sums are rounded in another order"

    min_mega_macs: int = 8
    min_gain: float = 1.05

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Rename nodes; linear besides the measuring."""
        layers = [node for node in graph if canonical(node.op) == "FullyConnected"]
        if layers and cx.target is not None and cx.target.dense_means() is None:
            lack = "there is nothing faster here: no matrix unit (AMX), no ports for sums (Zen)"
            cx.missed(f"dense layers stay: {lack}", layers[0])
            return graph
        edited, held = graph.copy(), held_nodes(graph)
        for node in layers:
            why = self._unfit(graph, node, held) or self._slower(graph, node, cx)
            if why is not None:
                cx.missed(f"it stays: {why}", node)
                continue
            edited.update(edited[node.id].but(op=DENSE))
            cx.count("replaced")
        return edited if cx.stats["replaced"] else graph

    def _unfit(self, graph: Graph, node: Node, held: frozenset[NodeId]) -> str | None:
        why = not_ours(graph, node, held)
        if why is not None:
            return why
        rows, depth, units, _ = problem_of(graph, node)
        if rows < _LEAST_ROWS or rows * depth * units < self.min_mega_macs * 1_000_000:
            return f"{rows}x{depth} by {depth}x{units} is too small"
        return None

    def _slower(self, graph: Graph, node: Node, cx: PassContext) -> str | None:
        """Why MXNet's product stays; tells what was measured where it does not."""
        if cx.target is None:
            return None
        problem = problem_of(graph, node)
        timed = as_timed(problem)
        ours, plain = _measured(timed, node, cx.target)
        told = f"{cx.target.dense_means()} {in_ms(ours)}, by MXNet {in_ms(plain)}"
        told += of_so_many(timed, problem)
        if plain < self.min_gain * ours:
            return told
        cx.passed(told, node)
        return None


def _measured(problem: Problem, node: Node, target: Target) -> Sequence[float]:
    """Milliseconds of a layer and its gradients: by our products, and by MXNet."""

    def measure() -> list[float]:
        _, depth, units, _ = problem
        graphs = [alone(op, problem, (units, depth)) for op in (DENSE, "FullyConnected")]
        return target.times_ms(graphs, training=True)

    found: Sequence[float] = target.measured_once(
        ("dense", *map(str, problem)), measure, (node.name,)
    )
    return found
