"""``graphopt bisect``: the first pass that breaks a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphopt.cli import models
from graphopt.cli.console import note, say, say_json
from graphopt.cli.inputs import Shape, type_options
from graphopt.cli.progress import progress
from graphopt.cli.saving import check_target, save
from graphopt.cli.verb import as_mode, build_pipeline, mode_option, pipeline_option, verb

if TYPE_CHECKING:
    from graphopt.pipeline.base import Pass
    from graphopt.pipeline.manager import Receipt


@verb
@models.model_argument
@type_options
@pipeline_option(None)
@mode_option
@models.feed_options
@click.option(
    "-o", "--output", metavar="OUT", help="Write the graph that the pass was given, as text."
)
def command(
    model: str,
    shapes: dict[str, Shape],
    dtypes: dict[str, str],
    pipeline: str,
    mode: str,
    params: str | None,
    seed: int,
    output: str | None,
    as_json: bool,
) -> int:
    """Find the first pass that changes what a model computes.

    The graph is run after every pass that changed it and compared with the original. Exit status 1
    tells that a pass was found: its name is printed, with what it broke; 0 that all are fine.
    """
    from graphopt.api.inspecting import Snapshots
    from graphopt.api.running import run

    passes = build_pipeline(pipeline)
    if output is not None:
        check_target(output, "text", [model, params])
    found = models.load(model, shapes, dtypes)
    values = models.feeds(found, params, seed)
    with progress(len(passes), f"checking {found.graph.name}") as step:
        snapshots = Snapshots(step)
        result = run(
            found.graph,
            passes,
            mode=as_mode(mode),
            check=True,
            feeds=values,
            instruments=[snapshots],
        )
    bad = _first_bad(result.receipts)
    if bad is not None and output is not None:
        given = snapshots.steps(found.graph, result.receipts)[bad].before
        note(f"wrote {save(given, output, 'text', {}).paths[0]}")
    if as_json:
        say_json(_document(passes, result.receipts, bad))
    elif bad is None:
        say(f"all {len(passes)} passes keep what {found.graph.name} computes")
    else:
        say(f"pass {bad + 1} of {len(passes)} breaks {found.graph.name}: {passes[bad]}")
        say(result.receipts[bad].reason)
    if bad is not None:
        models.doubt_random(params)
    return int(bad is not None)


def _first_bad(receipts: tuple[Receipt, ...]) -> int | None:
    return next((n for n, r in enumerate(receipts) if r.status == "rolled back"), None)


def _document(
    passes: tuple[Pass, ...], receipts: tuple[Receipt, ...], bad: int | None
) -> dict[str, object]:
    return {
        "passes": [str(pass_) for pass_ in passes],
        "bad": None if bad is None else bad + 1,
        "pass": None if bad is None else str(passes[bad]),
        "reason": None if bad is None else receipts[bad].reason,
        "max_errors": [receipt.max_error for receipt in receipts],
    }
