"""What the HTML report shows of memory: the plan of a run, and live bytes over its steps."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph

if TYPE_CHECKING:
    from graphopt.memory.memory_plan import MemoryPlan

_TOP = 12


def plan_data(graph: Graph, *, training: bool, frozen: bool) -> dict[str, object] | None:
    """What the report shows of a graph's plan.

    None where types are unknown, MXNet cannot bind the graph for training, or nothing runs.
    """
    from graphopt.memory.memory_plan import plan

    try:
        made = plan(graph, training=training, frozen=frozen)
    except GraphoptError:
        return None
    return shown(made) if made.schedule.operations else None


def shown(made: MemoryPlan) -> dict[str, object]:
    """Live bytes at each step, the steps, what makes the peak, and ways to lay tensors out."""
    operations, residents = made.schedule.operations, made.residents
    return {
        "live": [int(nbytes) for nbytes in made.liveness.live_bytes],
        "steps": [operation.name + _again(operation.phase) for operation in operations],
        "backward": next(
            (at for at, step in enumerate(operations) if step.phase != "forward"), None
        ),
        "repeated": len(made.repeated),
        "peak": made.peak,
        "peak_step": made.peak_step,
        "residents": [
            {"name": one.name + _again(one.phase), "layer": one.layer, "bytes": one.nbytes}
            for one in residents[:_TOP]
        ],
        "more": sum(one.nbytes for one in residents[_TOP:]),
        "layers": [
            {"name": name, "bytes": nbytes} for name, nbytes in list(made.layers.items())[:_TOP]
        ],
        "rows": [asdict(row) for row in made.rows],
        "given": dict(made.schedule.given),
        "uncounted": list(made.uncounted),
    }


def _again(phase: str) -> str:
    return " (computed again)" if phase == "recompute" else ""
