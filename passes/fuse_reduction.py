"""Reductions over rows, with the pointwise work around them, fused into kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.ir.graph import Graph
from graphopt.passes.fusion.fuse import fuse
from graphopt.pipeline.base import Pass, PassContext


@dataclass(frozen=True)
class FuseReduction(Pass):
    """Reductions of rows are kernels, together with the pointwise work before and after them.

    That is softmax, layer, instance and group normalization, sums, means and norms over any axes
    that are neighbours; groups of channels become an axis by reshaping, which moves nothing. A
    kernel reads a row once, and walks it as often as its reductions depend on each other while it
    is in the cache. Where other axes come behind those that are reduced, as behind channels or
    steps, rows lie side by side and vectors go across them, on CPUs and of eight rows or more.
    Its gradient is a kernel too. What stays outside is as in fuse-pointwise; regions without a
    reduction are left to that pass, so it comes after this one.

    Example::

        // before
        graph net(%x: f32[4,8]) {
          %a = _mul_scalar(%x) {scalar=0.5} : f32[4,8]
          %b = softmax(%a) : f32[4,8]
          return %b
        }
        // after
        graph net(%x: f32[4,8]) {
          %b_fused = graphopt_fused(%x)
            {spec="f32[a|b] (f32[a,b]) { %1 = mul %0 0.5; %2 = softmax %1; return %2:f32[a,b] }"}
            : f32[4,8] [
            graph region(%in0: f32[4,8]) {
              %a = _mul_scalar(%in0) {scalar=0.5} : f32[4,8]
              %b = softmax(%a) : f32[4,8]
              return %b
            }
          ]
          return %b_fused
        }
    """

    name: ClassVar[str] = "fuse-reduction"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Grow regions along reads, keep those with a reduction, replace them."""
        if cx.settings.precise:
            cx.missed("reductions are not fused: a kernel adds in another order than MXNet")
            return graph
        return fuse(graph, cx, rows=True)
