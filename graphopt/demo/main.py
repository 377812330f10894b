"""``graphopt demo``: what the passes do to embedded models, and what that gains."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from graphopt.analysis.metrics import measure
from graphopt.cli.console import Table, note, paint, say, say_json
from graphopt.cli.progress import progress
from graphopt.ir.attrs import EMPTY
from graphopt.passes import ALIASES

if TYPE_CHECKING:
    from graphopt.api.inspecting import Inspection
    from graphopt.api.inspecting import Row as PassRow
    from graphopt.demo.measuring import Mode, Row
    from graphopt.demo.models import Recipe
    from graphopt.ir.graph import Graph

_SHORT = {name: alias for alias, name in ALIASES.items()}


def run_demo(*, quick: bool = False, json: bool = False) -> int:
    """Optimize the embedded models, check and time them, and print what was found.

    Args:
        quick: smaller models, shorter measurements.
        json: write one JSON document instead of tables.

    Returns:
        The exit status: 1 if an optimized net computes something else than plain MXNet.
    """
    # As many threads for all; MXNet reads this when it is first imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    plan = _plan(quick)
    with progress(len(plan) + 2, "demo") as step:
        before, after = _small_graph()
        step("the small graph")
        seen = _inspect(quick)
        step("pass by pass")
        rows = [_measure(recipe, mode, quick, step) for recipe, mode in plan]
    if json:
        say_json(_document(before, after, seen, rows))
    else:
        _show_graph(before, after)
        _show_passes(seen)
        _show_rows(rows)
    wrong = [row for row in rows if not row.is_right]
    for row in wrong:
        note(f"{row.name} ({row.mode}) is wrong: its largest relative error is {row.max_error:.1e}")
    return int(bool(wrong))


def _plan(quick: bool) -> list[tuple[Recipe, Mode]]:
    from graphopt.demo import models
    from graphopt.demo.models import Recipe

    extent = 64 if quick else 128
    small = {"batch": 2, "length": 32, "width": 128, "heads": 4}
    larger = {"batch": 4, "length": 64, "width": 256, "heads": 8}
    resnet = Recipe("resnet18_v1", models.zoo, {"name": "resnet18_v1", "extent": extent})
    # Statistics of a batch say little about a batch of one: nobody trains so.
    learning = Recipe(
        "resnet18_v1", models.zoo, {"name": "resnet18_v1", "extent": extent, "batch": 8}
    )
    mobilenet = Recipe("mobilenet1_0", models.zoo, {"name": "mobilenet1_0", "extent": extent})
    encoder = Recipe("encoder", models.encoder, small if quick else larger)
    lstm = Recipe("lstm", models.lstm, {"batch": 8 if quick else 32})
    words = Recipe("word_lstm", models.word_lstm, {"batch": 8 if quick else 32})
    trees = Recipe("tree_lstm", models.tree_lstm, {"samples": 4 if quick else 12})
    inferred = [resnet, mobilenet, encoder, lstm, words, trees]
    trained = [learning, encoder, lstm, *([] if quick else [trees])]
    return [(recipe, "inference") for recipe in inferred] + [
        (recipe, "training") for recipe in trained
    ]


def _small_graph() -> tuple[Graph, Graph]:
    import graphopt
    from graphopt.demo import models

    graph = graphopt.lift(models.tiny_cnn().net, {"data": (1, 3, 32, 32)})
    return graph, graphopt.run(graph).graph


def _inspect(quick: bool) -> Inspection:
    import graphopt
    from graphopt.api.inspecting import inspect
    from graphopt.demo import models

    extent = 64 if quick else 128
    net = models.zoo("resnet18_v1", extent=extent).net
    graph = graphopt.lift(net, {"data": (1, 3, extent, extent)})
    graph.name = "resnet18_v1"
    return inspect(graph, seconds=0.1 if quick else 0.5)


def _measure(recipe: Recipe, mode: Mode, quick: bool, step: Any) -> Row:
    from graphopt.demo.measuring import measure

    row = measure(recipe.build(), mode, seconds=0.3 if quick else 1.5)
    step(f"{recipe.name}, {mode}")
    return row


def _document(
    before: Graph, after: Graph, seen: Inspection, rows: Sequence[Row]
) -> dict[str, object]:
    return {
        "graph": {"before": str(before), "after": str(after)},
        "passes": [row.as_dict() for row in (*seen.rows, seen.total)],
        "models": [row.as_dict() for row in rows],
    }


def _title(text: str) -> None:
    say(paint(f"\n{text}\n", "cyan"))


def _show_graph(before: Graph, after: Graph) -> None:
    import graphopt
    from graphopt.backend.freeze import freeze

    per_call = graphopt.run(freeze(after).per_call, "dce").graph
    once = measure(after).nodes - measure(per_call).nodes
    _title("A small net as graphopt sees it (attributes left out)")
    say(_body(before))
    _title("... and what is left to run on every call after the inference pipeline")
    say(_body(per_call))
    say(f"  ({once} more operators work on parameters only and run once)")


def _body(graph: Graph) -> str:
    """The operators of a graph in the text form, without attributes."""
    bare = graph.copy()
    for node in graph:
        bare.update(node.but(attrs=EMPTY))
    width = min(100, shutil.get_terminal_size().columns)
    wrap = TextWrapper(width, initial_indent="  ", subsequent_indent=" " * 6).fill
    return "\n".join(wrap(line.strip()) for line in str(bare).splitlines()[1:-1])


def _show_passes(seen: Inspection) -> None:
    _title("resnet18_v1, pass by pass")
    columns = ("pass", ">nodes", ">calls", ">MB", ">run ms", ">speed-up", ">max error")
    Table(columns, [_pass_cells(row) for row in (*seen.rows, seen.total)], last=True).show()
    say("nodes: operators; calls: those that run on every call; MB: intermediate results")


def _pass_cells(row: PassRow) -> tuple[str, ...]:
    name = _SHORT.get(row.name, row.name)
    if row.status in ("refused", "rolled back"):
        name = f"{name} ({row.status})"
    return (
        name,
        str(row.metrics.nodes),
        str(row.metrics.calls),
        f"{row.metrics.intermediate_bytes / 1e6:.1f}",
        f"{row.run_ms:.3g}" if row.run_ms is not None else "",
        f"{row.speed_up:.2f}x" if row.speed_up is not None else "",
        f"{row.max_error:.1e}" if row.max_error is not None else "",
    )


def _show_rows(rows: Sequence[Row]) -> None:
    _title("graphopt.optimize(net) beside hybridize(static_alloc=True, static_shape=True)")
    columns = ("net", "mode", ">plain ms", ">graphopt ms", ">speed-up", ">max error")
    Table(columns, [_cells(row) for row in rows]).show()
    say(
        "tree_lstm walks one tree at a time: it runs by graphopt.batch(net), over all trees at once"
    )
    say("max error: largest difference of outputs (in training also of gradients and")
    say("running statistics) from plain MXNet's, relative to the largest value")
    for row in rows:
        if row.jump:
            say(f"{row.name}: where rounding changes the sign of what a ReLU reads, gradients")
            say(f"jump; plain MXNet's by {row.jump:.1e} if images change by 2e-5")
    _show_reasons(rows)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.mode,
        f"{row.plain_ms:.2f}",
        f"{row.optimized_ms:.2f}",
        f"{row.speed_up:.2f}x",
        f"{row.max_error:.1e}{'' if row.is_right else ' WRONG'}",
    )


def _show_reasons(rows: Sequence[Row]) -> None:
    slow = [row for row in rows if row.reasons]
    if not slow:
        return
    _title("Not faster, and why")
    for row in slow:
        say(f"{row.name}, {row.mode}: {row.speed_up:.2f}x")
        for reason in row.reasons:
            say(f"  {reason}")
