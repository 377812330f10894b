"""``graphopt inspect --memory``: what the tensors of a model occupy, and what makes the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphopt.cli import models
from graphopt.cli.console import note, say, say_json
from graphopt.cli.native import hushed
from graphopt.cli.verb import as_mode

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.pipeline.base import Pass


def show(graph: Graph, passes: tuple[Pass, ...], mode: str, *, as_json: bool) -> int:
    """Print the plan of the graph that the passes leave; nothing is run.

    Raises:
        UsageError: an input has no shape.
        InputError: MXNet cannot bind the graph for training.
    """
    from graphopt.api.running import run
    from graphopt.memory.memory_plan import plan

    models.require_types(graph)
    training = mode == "training"
    if passes:
        result = run(graph, passes, mode=as_mode(mode), frozen=not training)
        changed = sum(receipt.status == "changed" for receipt in result.receipts)
        note(f"{changed} of {len(passes)} passes changed the graph")
        graph = result.graph
    with hushed():
        made = plan(graph, training=training, frozen=not training)
    if as_json:
        say_json(made.as_dict())
    else:
        say(made.report())
    return 0
