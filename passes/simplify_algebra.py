"""Replace arithmetic by less of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.ir.graph import Graph
from graphopt.passes.algebra import (
    binary,
    casts,
    idioms,
    powers,
    reductions,
    scalars,
    windows,
)
from graphopt.pipeline.base import Pass, PassContext
from graphopt.rewrite import apply_rules

RULES = (
    *casts.RULES,
    *scalars.RULES,
    *powers.RULES,
    *windows.RULES,
    *binary.RULES,
    *idioms.RULES,
    *reductions.RULES,
)


@dataclass(frozen=True)
class SimplifyAlgebra(Pass):
    """Replaces arithmetic by less of it that has the same values and gradients.

    Neutral elements go, also as tensors of zeros and ones; chains of operators with scalars,
    limits (clip, maximum, relu), casts and reductions merge; powers get a plain operator; common
    idioms (sigmoid, rsqrt, log1p, expm1) get their own; broadcasting equal shapes becomes
    element-wise work.

    Values may differ in the last bits; ``precise`` forbids what rounds differently. Training
    forbids what changes a gradient at a border or a tie. Undefined and infinite values stay what
    they are, except where an operator overflows halfway or pow(-inf, 0.5) is asked for. Scalars
    that cancel, as in ``(x + 1e8) - 1e8``, are left alone. Integers: exact rules only.

    Example::

        graph g(%x: f32[8,4]) {
          %1 = negative(%x) : f32[8,4]
          %2 = exp(%1) : f32[8,4]
          %3 = _plus_scalar(%2) {scalar=1} : f32[8,4]
          %y = _rdiv_scalar(%3) {scalar=1} : f32[8,4]
          return %y
        }
        // after
        graph g(%x: f32[8,4]) {
          %y = sigmoid(%x) : f32[8,4]
          return %y
        }
    """

    name: ClassVar[str] = "simplify-algebra"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Apply the rules until none fits."""
        return apply_rules(graph, RULES, cx)
