"""Products of recurrences by a matrix unit or by vectors, as is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE, Node
from graphopt.kernels.products import BY_UNIT
from graphopt.passes.recurrence.alone import Alone
from graphopt.pipeline.base import Mode, Pass, PassContext, Target
from graphopt.pipeline.remarks import in_ms

#: Rows and weights below which products are by vectors anyway; see kernels/bridge/matrix.h.
_LEAST_ROWS: Final = 16
_LEAST_WEIGHTS: Final = 32 << 10
#: As many steps are timed as have so many multiplications, and some at least.
_TIMED_MACS: Final = 1 << 26
_FEWEST_STEPS: Final = 8


@dataclass(frozen=True)
class SelectRecurrence(Pass):
    """Recurrences multiply by the matrix unit (AMX) or by vectors, as is faster.

    The unit multiplies float32 as sums of three bfloat16, nearly twice as fast as vectors at best.
    Batches of few rows leave much of its tiles empty, and the two threads of a core, which two
    processors of a virtual machine may be, have one unit between them. So each distinct recurrence
    is timed once on a machine, for some of its steps, and where vectors are ``min_gain`` times as
    fast it multiplies by these.

    In no named pipeline, since its result depends on the machine: lowering runs it, and
    ``explain()`` tells what it chose. ``GRAPHOPT_AMX=0`` in the environment leaves the unit unused.

    Args:
        min_gain: how many times as fast as the unit vectors have to be.

    Example::

        // before
        graph net(%x: f32[8,32,200], param %w: f32[200,200], param %u: f32[200,200]) {
          %y = graphopt_recurrence(%x, %w, %u) {spec="recurrence f32 (200) (200) (200x200, 200x200) () ;; 200 = x0 @ m0' + s0 @ m1' ;; 200 = t0 -> f32[a,b] (f32[a,b]) { %1 = tanh %0; return %1:f32[a,b] } ;; next t1 ;; emit t1", zero_states=True}
              : (f32[8,32,200], f32[32,200])
          return %y
        }
        // after
        graph net(%x: f32[8,32,200], param %w: f32[200,200], param %u: f32[200,200]) {
          %y = graphopt_recurrence(%x, %w, %u) {by_vectors=True, spec="recurrence f32 (200) (200) (200x200, 200x200) () ;; 200 = x0 @ m0' + s0 @ m1' ;; 200 = t0 -> f32[a,b] (f32[a,b]) { %1 = tanh %0; return %1:f32[a,b] } ;; next t1 ;; emit t1", zero_states=True}
              : (f32[8,32,200], f32[32,200])
          return %y
        }
    """  # noqa: E501 - as it prints

    name: ClassVar[str] = "select-recurrence"
    cpu_only: ClassVar[str] = "kernels of recurrences run on CPUs only"
    rounding: ClassVar[str] = "vectors round otherwise than the unit"

    min_gain: float = 1.05

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Mark nodes; linear besides the measuring."""
        found = [node for node in graph if node.op == RECURRENCE]
        if not found or cx.target is None or cx.target.dense_means() != BY_UNIT:
            return graph
        edited, held = graph.copy(), held_nodes(graph)
        for node in found:
            if node.id in held or node.attrs.flag("by_vectors"):
                continue
            why = self._unfit(graph, node) or self._slower(Alone(graph, node), cx, cx.target)
            if why is not None:
                cx.missed(f"its products stay as they are: {why}", node)
                continue
            edited.update(edited[node.id].but(attrs=node.attrs.set(by_vectors=True)))
            cx.count("by vectors")
        return edited if cx.stats["by vectors"] else graph

    def _unfit(self, graph: Graph, node: Node) -> str | None:
        if not all(type_.is_static for type_ in (*map(graph.type_of, node.inputs), *node.types)):
            return "a shape is not known"
        one = Alone(graph, node)
        weights = one.macs // max(1, one.batch)
        if one.spec.dtype != "float32":
            return f"they are of {one.spec.dtype}"
        if one.batch < _LEAST_ROWS or weights < _LEAST_WEIGHTS or not one.steps:
            return f"{one.batch} rows with {weights} weights are few"
        return None

    def _slower(self, one: Alone, cx: PassContext, target: Target) -> str | None:
        """Why the unit stays; tells what was measured where it does not."""
        steps = _timed_steps(one)
        unit, vectors = _measured(one, steps, cx.settings.mode, target)
        some = "" if steps == one.steps else f" for {steps} of its {one.steps} steps"
        told = f"by vectors {in_ms(vectors)}, by the matrix unit {in_ms(unit)}{some}"
        if unit < self.min_gain * vectors:
            return told
        cx.passed(told, one.node)
        return None


def _timed_steps(one: Alone) -> int:
    """A power of two, so that sequences of many lengths are timed but a few times."""
    wanted = min(one.steps, max(_FEWEST_STEPS, _TIMED_MACS // one.macs))
    return 1 << (wanted.bit_length() - 1)


def _measured(one: Alone, steps: int, mode: Mode, target: Target) -> Sequence[float]:
    """Milliseconds of some steps, in training with their gradients: by the unit, by vectors."""

    def measure() -> list[float]:
        graphs = [one.graph(steps, by_vectors=by_vectors) for by_vectors in (False, True)]
        return target.times_ms(graphs, training=mode == "training")

    text = str(one.graph(steps, by_vectors=False))
    found: Sequence[float] = target.measured_once(
        ("recurrence", mode, text), measure, (one.node.name,)
    )
    return found
