"""``graphopt view``: one HTML page that steps through the passes."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli import models
from graphopt.cli.console import note, say_json
from graphopt.cli.inputs import Shape, type_options
from graphopt.cli.native import hushed
from graphopt.cli.progress import progress
from graphopt.cli.saving import check_target, write_files
from graphopt.cli.verb import as_mode, build_pipeline, mode_option, pipeline_option, verb


@verb
@models.model_argument
@type_options
@pipeline_option()
@mode_option
@models.feed_options
@click.option("--run/--no-run", default=True, help="Whether to run and time the graphs.")
@click.option("-o", "--output", metavar="OUT", required=True, help="The HTML file to write.")
def command(
    model: str,
    shapes: dict[str, Shape],
    dtypes: dict[str, str],
    pipeline: str,
    mode: str,
    params: str | None,
    seed: int,
    run: bool,
    output: str,
    as_json: bool,
) -> int:
    """Write an HTML page that steps through the passes.

    One file that needs nothing else: the passes on the left, what each changed in the middle, its
    numbers and remarks on the right. Arrow keys step; a name typed into the search field marks the
    passes that touched it. With --json the data of the page goes to stdout too.
    """
    from graphopt.api.inspecting import inspect
    from graphopt.api.reporting import page_data, render

    passes = build_pipeline(pipeline)
    check_target(output, "html", [model, params])
    found = models.load(model, shapes, dtypes)
    values = models.feeds(found, params, seed) if run else None
    if params is not None and not run:
        models.parameters_of(found, params)  # which may be no file of them
    with progress(2 * len(passes), f"inspecting {found.graph.name}") as step:
        seen = inspect(found.graph, passes, mode=as_mode(mode), feeds=values, run=run, step=step)
    with hushed():
        data = page_data(found.graph.name, mode, seen)
    path = Path(output)
    write_files({path: lambda draft: draft.write_text(render(data), encoding="utf-8")})
    note(f"wrote {path}")
    if as_json:
        say_json(data)
    return int(any(row.status == "rolled back" for row in seen.rows))
