"""What the HTML report shows of memory: live bytes over the steps of a run."""

from __future__ import annotations

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.memory.liveness import liveness
from graphopt.memory.schedule import forward_schedule, training_schedule

_TOP = 12


def timeline_data(graph: Graph, *, training: bool, frozen: bool) -> dict[str, object] | None:
    """Live bytes at each step, the steps, and what makes the peak.

    None where types are unknown, MXNet cannot bind the graph for training, or nothing runs.
    """
    try:
        if training:
            from graphopt.memory.memory_plan import learned
            from graphopt.memory.training import training_graph

            made = training_graph(graph, grad_req=learned(graph))
            schedule = training_schedule(made, name=graph.name)
        else:
            schedule = forward_schedule(graph, frozen=frozen)
    except GraphoptError:
        return None
    if not schedule.operations:
        return None
    live = liveness(schedule)
    at = live.peak_step
    residents = [
        {"name": live.tensor_at(buffer, at).name, "bytes": int(live.buffers.size[buffer])}
        for buffer in live.live_at(at)
    ]
    return {
        "live": [int(nbytes) for nbytes in live.live_bytes],
        "steps": [operation.name for operation in schedule.operations],
        "backward": next(
            (at for at, step in enumerate(schedule.operations) if step.phase != "forward"), None
        ),
        "peak": live.peak,
        "peak_step": at,
        "residents": residents[:_TOP],
        "more": sum(int(live.buffers.size[b]) for b in live.live_at(at)[_TOP:]),
    }
