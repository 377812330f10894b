"""Pointwise operators fused into kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.ir.graph import Graph
from graphopt.passes.fusion.fuse import fuse
from graphopt.pipeline.base import Pass, PassContext


@dataclass(frozen=True)
class FusePointwise(Pass):
    """Pointwise operators that read each other are one node, whose kernel walks memory once.

    A region holds operators with outputs of one shape, whatever broadcasts into it, and has as many
    outputs as are read elsewhere. Its gradient is a kernel too, which computes values of forward
    again instead of reading them. Regions grow along reads, as long as that makes no cycle. Those
    that would read and write more than 24 arrays are cut, where few values go from part to part.

    Stays outside: what is random, mutating, opaque or ordered by control dependencies; operators
    whose types are not static; in frozen graphs what depends on parameters only, as it is computed
    once; a lone operator that MXNet computes as fast, which of those over floats are few; relu and
    sums beside convolutions, which MXNet has oneDNN compute on its blocks of channels. Kernels
    leave arrays in such blocks, too, where nothing is stretched along the channels.

    Example::

        // before
        graph net(%x: f32[8], %w: f32[8]) {
          %a = elemwise_mul(%x, %w) : f32[8]
          %b = tanh(%a) : f32[8]
          return %b
        }
        // after
        graph net(%x: f32[8], %w: f32[8]) {
          %b_fused = graphopt_fused(%x, %w)
            {spec="f32[a] (f32[a], f32[a]) { %2 = mul %0 %1; %3 = tanh %2; return %3:f32[a] }"}
            : f32[8] [
            graph region(%in0: f32[8], %in1: f32[8]) {
              %a = elemwise_mul(%in0, %in1) : f32[8]
              %b = tanh(%a) : f32[8]
              return %b
            }
          ]
          return %b_fused
        }
    """

    name: ClassVar[str] = "fuse-pointwise"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Grow regions along reads, weigh them, replace them."""
        return fuse(graph, cx, rows=False)
