"""``graphopt inspect --memory``: what the tensors of a model occupy, and what makes the peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphopt.cli import models
from graphopt.cli.console import note, say, say_json
from graphopt.cli.native import hushed
from graphopt.cli.verb import as_mode

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.memory.memory_plan import MemoryPlan
    from graphopt.pipeline.base import Pass


def show(
    graph: Graph,
    passes: tuple[Pass, ...],
    mode: str,
    *,
    as_json: bool,
    budget: int | None = None,
    values: Mapping[str, Any] | None = None,
) -> int:
    """Print the plan of the graph that the passes leave.

    Nothing is run, but for what a training step within a budget would be planned by: the time of
    each operator.

    Args:
        graph: the model.
        passes: to run on it first.
        mode: whether backward is part of the run.
        as_json: print JSON.
        budget: bytes of a training step.
        values: of all inputs, for a budget.

    Raises:
        UsageError: an input has no shape.
        InputError: MXNet cannot bind the graph for training.
        BudgetError: no training step takes as little as the budget.
        UnsupportedError: the shape of a training step's value is not known before it is computed.
    """
    from graphopt.api.running import run
    from graphopt.memory.memory_plan import plan

    models.require_types(graph)
    training = mode == "training"
    if passes:
        planned = budget is not None
        result = run(graph, passes, mode=as_mode(mode), frozen=not training, plans_memory=planned)
        changed = sum(receipt.status == "changed" for receipt in result.receipts)
        note(f"{changed} of {len(passes)} passes changed the graph")
        graph = result.graph
    with hushed():
        if budget is None:
            made = plan(graph, training=training, frozen=not training)
        else:
            made, told = _within(graph, budget, values or {})
    if budget is not None:
        note(told)
    if as_json:
        say_json(made.as_dict())
    else:
        say(made.report())
    return 0


def _within(graph: Graph, budget: int, values: Mapping[str, Any]) -> tuple[MemoryPlan, str]:
    """The plan of a training step that keeps within a budget, and what was done for that."""
    from graphopt.backend.fitting import require_sizes
    from graphopt.backend.lower import lower
    from graphopt.backend.pools import Pools
    from graphopt.compat import import_mxnet
    from graphopt.memory.memory_plan import learned

    require_sizes(graph)
    mx = import_mxnet()
    arrays = {name: mx.nd.array(value, dtype=value.dtype) for name, value in values.items()}
    data = {node.name: arrays.pop(node.name) for node in graph.role("data") if node.name in arrays}
    for name in learned(graph):
        arrays[name].attach_grad()
    lowered = lower(graph, arrays, training=True, memory=budget, pools=Pools())
    with mx.autograd.record():
        lowered.plan(data)
    return lowered.memory_plan(), lowered.choice.memory
