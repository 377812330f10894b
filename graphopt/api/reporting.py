"""The HTML report: one page that steps through the passes."""

from __future__ import annotations

import difflib
import json
import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.api.inspecting import inspect
from graphopt.api.jsonable import finite
from graphopt.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphopt.api.inspecting import Inspection, Row, Step
    from graphopt.ir.graph import Graph
    from graphopt.memory.memory_plan import MemoryPlan
    from graphopt.pipeline.base import Mode, Pass

_CONTEXT = 2


def write_report(
    graph: Graph,
    passes: str | Sequence[Pass],
    path: str | Path,
    *,
    mode: Mode,
    frozen: bool,
    title: str,
    step: MemoryPlan | None = None,
) -> Path:
    """Run passes over a graph again and write what each of them did; returns the path.

    ``step`` is the memory plan of the training step that runs, where that has one of its own.

    Raises:
        InputError: the path is none, or the file cannot be written.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"report() takes the path of a file, not a {type(path).__name__}")
    pipeline = passes if isinstance(passes, str) else tuple(passes)
    seen = inspect(graph, pipeline, mode=mode, frozen=frozen, run=False)
    target = Path(path)
    try:
        target.write_text(render(page_data(title, mode, seen, step)), encoding="utf-8")
    except (OSError, ValueError) as error:  # of a null character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write {str(path)!r}: {reason}") from None
    return target


def page_data(
    name: str, mode: str, seen: Inspection, step: MemoryPlan | None = None
) -> dict[str, object]:
    """What the page shows."""
    first, *rows = seen.rows
    original = seen.steps[0].before if seen.steps else seen.result.graph
    pages = [_page(first, diff=[], text=str(original), remarks=[])]
    pages += [_step(row, step) for row, step in zip(rows, seen.steps, strict=True)]
    return {
        "graph": name,
        "mode": mode,
        "pages": pages,
        "total": seen.total.as_dict(),
        "memory": _memory(original, seen.result.graph, step, training=mode == "training"),
    }


def _memory(
    before: Graph, after: Graph, step: MemoryPlan | None, *, training: bool
) -> list[dict[str, object]]:
    """Memory over time of the original graph, of what passes made of it, and of what runs."""
    from graphopt.memory.page import plan_data, shown

    named = [("original", before)]
    if not after.is_unchanged_from(before):
        named.append(("after the passes", after))
    found = []
    for title, graph in named:
        data = plan_data(graph, training=training, frozen=not training)
        if data is not None:
            found.append({"title": title, **data})
    if step is not None:
        found.append({"title": "as it runs in planned memory", **shown(step)})
    return found


def render(data: dict[str, object]) -> str:
    """The page, self-contained."""
    from jinja2 import Environment

    source = resources.files("graphopt.api").joinpath("static/view.html")
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
