"""Remove and merge operators that only move or rename data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.ir.graph import Graph
from graphopt.passes.layout import flattening, pieces, pulling, steps, transposes, views
from graphopt.pipeline.base import Pass, PassContext
from graphopt.rewrite import apply_rules

RULES = (
    *views.RULES,
    *transposes.RULES,
    *pulling.RULES,
    *pieces.RULES,
    *steps.RULES,
    *flattening.RULES,
)


@dataclass(frozen=True)
class CancelLayout(Pass):
    """Removes reshapes, transposes, slices and concatenations that cancel, and merges the others.

    Views (Reshape, Flatten, expand_dims, squeeze) in a row become one or none; the shape that
    is left keeps the batch extent generic where it can. Transposes in a row are composed; one
    that moves only axes of length 1 becomes a view; reductions, ``dot`` and ``batch_dot`` take
    one over; one is pulled up through pointwise operators if fewer bytes are transposed then.
    Slices of slices and concatenations, concatenations of adjacent slices, splits of
    concatenations and reversals in pairs go as well. Steps of an array (a split that takes the
    axis away) that are all stacked again, with others in front or behind, are the array; one
    that is read alone is a slice. The last step of sequences without lengths (``SequenceLast``)
    is a slice: the gradient of MXNet's operator reads memory that only its executor keeps.

    Most of it needs static types (``infer-types``). Values and gradients keep every bit, but sums
    and products over transposed data are taken in another order, which ``precise`` forbids. The
    graph never returns one of its own inputs, so a pair of transposes in between stays there.

    Example::

        graph g(%x: f32[8,3,32,32]) {
          %1 = transpose(%x) {axes=(0, 2, 3, 1)} : f32[8,32,32,3]
          %2 = relu(%1) : f32[8,32,32,3]
          %y = transpose(%2) {axes=(0, 3, 1, 2)} : f32[8,3,32,32]
          return %y
        }
        // after
        graph g(%x: f32[8,3,32,32]) {
          %y = relu(%x) : f32[8,3,32,32]
          return %y
        }
    """

    name: ClassVar[str] = "cancel-layout"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Apply the rules until none fits."""
        return apply_rules(graph, RULES, cx)
