"""``graphopt inspect``: a table, pass by pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli import models
from graphopt.cli.console import Table, paint, say, say_json
from graphopt.cli.inputs import Shape, type_options
from graphopt.cli.memory import show as show_memory
from graphopt.cli.progress import progress
from graphopt.cli.verb import (
    all_option,
    as_mode,
    build_pipeline,
    idle_line,
    is_pipeline_given,
    mode_option,
    pipeline_option,
    usage,
    verb,
)
from graphopt.errors import InputError

if TYPE_CHECKING:
    from graphopt.api.inspecting import Inspection, Row


class _Seconds(click.FloatRange):
    """A number from 0 on; NaN, which is in every range for click, is none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return found


COLUMNS = (
    "pass",
    "status",
    ">nodes",
    ">calls",
    ">parameters",
    ">MB",
    ">pass ms",
    ">run ms",
    ">original ms",
    ">speed-up",
    ">max error",
    "engine",
)
#: What a narrow terminal does not show, the most dispensable first.
SPARE = ("engine", ">original ms", ">parameters", ">pass ms", ">MB", ">nodes")


@verb
@models.model_argument
@type_options
@pipeline_option()
@mode_option
@models.feed_options
@click.option("--run/--no-run", default=True, help="Whether to run and time the graphs.")
@click.option(
    "--seconds",
    type=_Seconds(min=0),
    default=1.0,
    show_default=True,
    help="How long to time each graph beside the original.",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Show where tensors can lie and what makes the peak instead; passes run only with -p.",
)
@click.option(
    "--budget",
    metavar="SIZE",
    help="With --memory --mode training: what a step may take, such as 900MB; what does not fit is"
    " computed again.",
)
@all_option
def command(
    model: str,
    shapes: dict[str, Shape],
    dtypes: dict[str, str],
    pipeline: str,
    mode: str,
    params: str | None,
    seed: int,
    run: bool,
    seconds: float,
    memory: bool,
    budget: str | None,
    everything: bool,
    as_json: bool,
) -> int:
    """Show what each pass does to a model: size, bytes, time, error.

    MODEL is a *-symbol.json file, a graph's text (*.gir), - for stdin, or model_zoo:NAME for a
    model of Gluon's vision zoo. Columns: operators; those that run on every call; elements of
    parameters; megabytes of intermediate results; time of the pass; time of a call and, measured in
    turns with it, of the original; how many times faster; largest error against the original.
    Exit status 1 tells that a pass had to be rolled back.
    """
    from graphopt.api.inspecting import inspect

    passes = build_pipeline(pipeline)
    if budget is not None and (not memory or mode != "training"):
        usage("--budget is of a training step's plan: give --memory and --mode training, too")
    allowed = None if budget is None else _size(budget)
    found = models.load(model, shapes, dtypes)
    is_fed = allowed is not None or (run and not memory)
    values = models.feeds(found, params, seed) if is_fed else None
    if params is not None and not is_fed:
        models.parameters_of(found, params)  # which may be no file of them
    if memory:
        return show_memory(
            found.graph,
            passes if is_pipeline_given() else (),
            mode,
            as_json=as_json,
            budget=allowed,
            values=values,
        )
    with progress(2 * len(passes), f"inspecting {found.graph.name}") as step:
        seen = inspect(
            found.graph,
            passes,
            mode=as_mode(mode),
            feeds=values,
            run=run,
            seconds=seconds,
            step=step,
        )
    if as_json:
        say_json(_document(found.graph.name, mode, seen))
    else:
        _show(seen, everything=everything or is_pipeline_given())
    failed = any(row.status == "rolled back" for row in seen.rows)
    if failed and run:
        models.doubt_random(params)
    return int(failed)


def _size(text: str) -> int:
    from graphopt.memory.sizes import parse_size

    try:
        return parse_size(text)
    except InputError as error:
        usage(f"--budget: {error}")


def _document(name: str, mode: str, seen: Inspection) -> dict[str, object]:
    return {
        "graph": name,
        "mode": mode,
        "rows": [row.as_dict() for row in seen.rows],
        "total": seen.total.as_dict(),
        "remarks": [remark.as_dict() for remark in seen.result.remarks],
    }


def _show(seen: Inspection, *, everything: bool) -> None:
    shown = [row for row in seen.rows if everything or row.status != "unchanged" or row.reason]
    rows = [_cells(row) for row in (*shown, seen.total)]
    Table(COLUMNS, rows, last=True, spare=SPARE).show()
    if len(shown) < len(seen.rows):
        say(idle_line(len(seen.rows) - len(shown)))
    for row in seen.rows:
        if row.reason:
            colour = "red" if row.status == "rolled back" else "yellow"
            say(f"{paint(row.status, colour)}: {row.name}: {row.reason}")


def _milliseconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _times(ratio: float | None) -> str:
    """A ratio to three digits, which is more than its measurement is worth."""
    if ratio is None:
        return ""
    return f"{ratio:.{max(0, 2 - int(math.log10(max(ratio, 1))))}f}x"


def _cells(row: Row) -> tuple[str, ...]:
    size = row.metrics
    return (
        row.name,
        row.status,
        str(size.nodes),
        str(size.calls),
        str(size.parameters),
        f"{size.intermediate_bytes / 1e6:.2f}",
        f"{row.pass_ms:.1f}" if row.status else "",
        _milliseconds(row.run_ms),
        _milliseconds(row.original_ms),
        _times(row.speed_up),
        f"{row.max_error:.1e}" if row.max_error is not None else "",
        row.engine.removesuffix(" subgraphs"),
    )
