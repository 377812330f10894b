"""Replacement of operators of ``mx.np`` and ``mx.npx`` by those of ``mx.nd``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.ir.graph import Graph
from graphopt.passes.classic import pointwise, shapes, sums
from graphopt.pipeline.base import Pass, PassContext
from graphopt.rewrite import apply_rules

RULES = (*pointwise.RULES, *shapes.RULES, *sums.RULES)


@dataclass(frozen=True)
class ReplaceNumpy(Pass):
    """One vocabulary: what ``mx.np`` and ``mx.nd`` both compute is called as ``mx.nd`` calls it.

    MXNet registered its numpy interface as operators of their own (``_npi_add``, ``_npx_relu``,
    ``_npx_reshape`` ...), beside those that it had. Where shapes and dtypes leave no difference,
    every later pass sees the older one, and a net is optimized alike whichever interface it was
    written with. What the net returns is still of the interface that it was called with.

    Arithmetic, activations, reductions over stated axes and products are replaced on arrays of one
    floating dtype; reshapes, transposes and joins on any. A comparison becomes 0 or 1 in the dtype
    of what it compares where it is a condition, a factor, or cast. What has no axis or no element,
    promotes dtypes, or has no counterpart stays; it is computed as before. Only joins that reshape
    what they read have that reshaped in front of them. Needs ``infer-types``.

    Example::

        // before
        graph net(%x: f32[8,16], %w: f32[16]) {
          %1 = _npi_multiply(%x, %w) : f32[8,16]
          %2 = _npx_relu(%1) : f32[8,16]
          %y = _npx_reshape(%2) {newshape=(-2, -6, 4, -1)} : f32[8,4,4]
          return %y
        }
        // after
        graph net(%x: f32[8,16], %w: f32[16]) {
          %1 = broadcast_mul(%x, %w) : f32[8,16]
          %2 = relu(%1) : f32[8,16]
          %y = Reshape(%2) {shape=(0, -4, 4, -1)} : f32[8,4,4]
          return %y
        }
    """

    name: ClassVar[str] = "replace-numpy"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Apply the rules until none fits; linear."""
        return apply_rules(graph, RULES, cx)
