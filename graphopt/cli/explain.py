"""``graphopt explain``: remarks by pass, or the story of one node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from graphopt.cli import models
from graphopt.cli.console import note, paint, say, say_json
from graphopt.cli.inputs import Shape, type_options
from graphopt.cli.verb import (
    all_option,
    as_mode,
    build_pipeline,
    idle_line,
    is_pipeline_given,
    mode_option,
    note_failures,
    pass_name,
    pipeline_option,
    unknown,
    usage,
    verb,
)

if TYPE_CHECKING:
    from graphopt.api.inspecting import Step
    from graphopt.cli.history import Event
    from graphopt.ir.graph import Graph
    from graphopt.pipeline.remarks import Remark

#: How remarks are introduced, in this order.
TITLES = {"passed": "done", "missed": "not done", "analysis": "found"}
_COLOURS = {"passed": "green", "missed": "yellow", "analysis": "cyan"}
_SHOWN = 6


@verb
@models.model_argument
@type_options
@pipeline_option()
@mode_option
@click.option("--node", metavar="NAME", help="Tell what became of this node.")
@click.option("only", "--pass", metavar="NAME", help="Only what this pass remarks.")
@all_option
def command(
    model: str,
    shapes: dict[str, Shape],
    dtypes: dict[str, str],
    pipeline: str,
    mode: str,
    node: str | None,
    only: str | None,
    everything: bool,
    as_json: bool,
) -> int:
    """Tell what was done to a model, what was not, and why.

    Without --node: per pass what it did, what it did not do and why, and what it found. With
    --node: which passes touched the node, what became of it, and why not more.
    """
    from graphopt.api.inspecting import Snapshots
    from graphopt.api.running import run

    passes = build_pipeline(pipeline)
    name = None if only is None else pass_name(only)
    names = [pass_.name for pass_ in passes]
    if name is not None and name not in names:
        usage(f"--pass: {name!r} is not in the pipeline ({', '.join(names) or 'empty'})")
    graph = models.load(model, shapes, dtypes).graph
    if not all(n.type.is_static for n in graph.role("data")):
        note("without --shape the types are not known, and passes do less")
    snapshots = Snapshots()
    result = run(graph, passes, mode=as_mode(mode), instruments=[snapshots])
    steps = snapshots.steps(graph, result.receipts)
    chosen = [s for s, own in zip(steps, names, strict=True) if name in (None, own)]
    note_failures(step.receipt for step in chosen)
    if node is None:
        everything = everything or only is not None or is_pipeline_given()
        _tell_all(chosen, everything=everything, as_json=as_json)
    else:
        _tell_node(node, graph, steps, chosen, as_json=as_json)
    return int(any(step.receipt.status == "rolled back" for step in chosen))


def _tell_all(steps: Sequence[Step], *, everything: bool, as_json: bool) -> None:
    if as_json:
        say_json({"passes": [_step_dict(step) for step in steps]})
        return
    shown = [step for step in steps if everything or _has_news(step)]
    for step in shown:
        receipt = step.receipt
        before, after = receipt.before.nodes, receipt.after.nodes
        size = f"{before} nodes" if before == after else f"{before} -> {after} nodes"
        reason = f": {receipt.reason}" if receipt.reason else ""
        say(f"{receipt.pass_text}: {receipt.status}{reason}, {size}")
        for line in remark_lines(step.remarks):
            say(f"  {line}")
    if len(shown) < len(steps):
        say(idle_line(len(steps) - len(shown)))


def _has_news(step: Step) -> bool:
    receipt = step.receipt
    return receipt.status != "unchanged" or bool(receipt.reason or step.remarks)


def _step_dict(step: Step) -> dict[str, object]:
    return {
        "pass": step.receipt.pass_text,
        "status": step.receipt.status,
        "reason": step.receipt.reason,
        "nodes": [step.receipt.before.nodes, step.receipt.after.nodes],
        "remarks": [remark.as_dict() for remark in step.remarks],
    }


def remark_lines(remarks: Iterable[Remark]) -> list[str]:
    """One line per kind and message, with the nodes of all remarks that say it."""
    grouped: dict[tuple[str, str], dict[str, None]] = {}
    for remark in remarks:
        nodes = grouped.setdefault((remark.kind.value, remark.message), {})
        nodes.update(dict.fromkeys(remark.nodes))
    lines = []
    for kind in TITLES:
        for (found, message), nodes in grouped.items():
            if found == kind:
                title = paint(TITLES[kind], _COLOURS[kind])
                lines.append(f"{title}: {message}{_listed(list(nodes))}")
    return lines


def _listed(names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f" [{', '.join(names[:_SHOWN])}{more}]"


def _tell_node(
    name: str, graph: Graph, steps: Sequence[Step], chosen: Sequence[Step], *, as_json: bool
) -> None:
    from graphopt.cli.history import fate, history

    graphs = (graph, *(step.after for step in steps))
    known = {node.name: None for one in graphs for node in one}
    if name not in known:
        usage(unknown("node", name, known))
    events = history(name, chosen)
    final = steps[-1].after if steps else graph
    end = fate(name, final)
    if as_json:
        say_json({"node": name, "events": [event.as_dict() for event in events], "end": end})
        return
    for line in _node_lines(name, graph, events, end):
        say(line)


def _node_lines(
    name: str, graph: Graph, events: Sequence[Event], end: Sequence[str]
) -> Iterable[str]:
    from graphopt.cli.history import lines_of

    start = lines_of(graph, name)
    yield from start or (f"{name} is not in the model; a pass made it",)
    for event in events:
        yield f"{event.pass_text}: {event.what}"
        yield from (f"  {line}" for line in event.lines)
        yield from (f"  {line}" for line in remark_lines(event.remarks))
    if not events:
        yield "no pass touched it or remarked on it"
    elif tuple(end) == events[-1].lines:
        return
    elif end:
        yield "in the end:"
        yield from (f"  {line}" for line in end)
    else:
        yield "in the end: nothing is left of it"
