"""``graphopt view``: one HTML page that steps through the passes."""

from __future__ import annotations

import difflib
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli import models
from graphopt.cli.console import finite, note, say_json
from graphopt.cli.inputs import Shape, type_options
from graphopt.cli.progress import progress
from graphopt.cli.saving import check_target, replacing
from graphopt.cli.verb import as_mode, build_pipeline, mode_option, pipeline_option, verb

if TYPE_CHECKING:
    from graphopt.api.inspecting import Inspection, Row, Step

_CONTEXT = 2


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

    passes = build_pipeline(pipeline)
    check_target(output, "html", [model, params])
    found = models.load(model, shapes, dtypes)
    values = models.feeds(found, params, seed) if run else None
    with progress(2 * len(passes), f"inspecting {found.graph.name}") as step:
        seen = inspect(found.graph, passes, mode=as_mode(mode), feeds=values, run=run, step=step)
    data = page_data(found.graph.name, mode, seen)
    path = Path(output)
    with replacing(path) as draft:
        draft.write_text(render(data), encoding="utf-8")
    note(f"wrote {path}")
    if as_json:
        say_json(data)
    return int(any(row.status == "rolled back" for row in seen.rows))


def page_data(name: str, mode: str, seen: Inspection) -> dict[str, object]:
    """What the page shows."""
    first, *rows = seen.rows
    original = seen.steps[0].before if seen.steps else seen.result.graph
    pages = [_page(first, diff=[], text=str(original), remarks=[])]
    pages += [_step(row, step) for row, step in zip(rows, seen.steps, strict=True)]
    return {"graph": name, "mode": mode, "pages": pages, "total": seen.total.as_dict()}


def render(data: dict[str, object]) -> str:
    """The page, self-contained."""
    from jinja2 import Environment

    source = resources.files("graphopt.cli").joinpath("static/view.html")
    template = Environment(autoescape=True).from_string(source.read_text(encoding="utf-8"))
    # Nothing in the data can end the element that holds it.
    embedded = json.dumps(finite(data), allow_nan=False).replace("<", "\\u003c")
    return template.render(title=str(data["graph"]), data=embedded)


def _step(row: Row, step: Step) -> dict[str, object]:
    remarks = [remark.as_dict() for remark in step.remarks]
    if step.receipt.status != "changed":
        return _page(row, diff=[], text=None, remarks=remarks)
    old, new = str(step.before), str(step.after)
    changes = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=_CONTEXT)
    return _page(row, diff=list(changes)[2:], text=new, remarks=remarks)


def _page(
    row: Row, *, diff: list[str], text: str | None, remarks: list[dict[str, object]]
) -> dict[str, object]:
    """A pass that changed nothing has no text: the page takes that of the pass before."""
    return {**row.as_dict(), "diff": diff, "text": text, "remarks": remarks}
