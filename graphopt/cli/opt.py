"""``graphopt opt``: run passes, write the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli import models
from graphopt.cli.console import Table, note, say, say_json
from graphopt.cli.inputs import Shape, type_options
from graphopt.cli.output_names import with_output_names
from graphopt.cli.progress import progress
from graphopt.cli.saving import EMITTERS, check_target, emit, is_of_numpy, save
from graphopt.cli.sizes import OtherSizes, findings_of
from graphopt.cli.verb import (
    as_mode,
    build_pipeline,
    mode_option,
    note_failures,
    pass_name,
    pipeline_option,
    unknown,
    usage,
    verb,
)

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.pipeline.base import Pass
    from graphopt.pipeline.instruments import Instrument, PrintIR
    from graphopt.pipeline.manager import Receipt, Result

KINDS = ("passed", "missed", "analysis")


@dataclass(frozen=True)
class Reports:
    """What to tell on stderr, and where to dump graphs."""

    print_after: str | None
    dump_dir: str | None
    timing: bool
    stats: bool
    remarks: str | None


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that only report."""
    for option in (
        click.option(
            "--remarks",
            metavar="KINDS",
            help=f"Tell on stderr what passes remark: all, or some of {','.join(KINDS)}.",
        ),
        click.option("--stats", is_flag=True, help="Tell on stderr what passes count."),
        click.option("--timing", is_flag=True, help="Tell on stderr how long passes take."),
        click.option(
            "--dump-dir", metavar="DIR", help="Write the graph after each pass into this folder."
        ),
        click.option(
            "print_after",
            "--print-ir-after",
            metavar="WHEN",
            help="Print graphs to stderr: changed, all, failed, or after these passes.",
        ),
    ):
        function = option(function)
    return function


@verb
@models.model_argument
@type_options
@pipeline_option()
@mode_option
@click.option("-o", "--output", metavar="OUT", help="Write to this file; default, and -: stdout.")
@click.option(
    "form",
    "--emit",
    type=click.Choice(list(EMITTERS)),
    help="Form of the result; default: by OUT's suffix (.json, .dot), else text.",
)
@click.option("--stop-after", metavar="NAME", help="Leave out what comes after this pass.")
@click.option("--check-numerics", is_flag=True, help="Run the graph after every change.")
@models.feed_options
@click.option("--precise", is_flag=True, help="No pass may round differently.")
@click.option("--strict", is_flag=True, help="Stop at the first pass that fails.")
@report_options
def command(
    model: str,
    shapes: dict[str, Shape],
    dtypes: dict[str, str],
    pipeline: str,
    mode: str,
    output: str | None,
    form: str | None,
    stop_after: str | None,
    check_numerics: bool,
    params: str | None,
    seed: int,
    precise: bool,
    strict: bool,
    as_json: bool,
    **reports: Any,
) -> int:
    """Run passes over a model and write the graph they make.

    MODEL is a *-symbol.json file, a graph's text (*.gir), - for stdin, or model_zoo:NAME. The text
    form can be read again. Symbol JSON loads in plain MXNet; tensors that passes computed, which
    JSON has no place for, go into a .params file next to OUT, as do the parameters if --params
    gives them: what depends on them alone is then computed now, except in training mode. A pass
    that fails is rolled back and reported; the exit status is 1 then.
    """
    from graphopt.api.running import run

    told = Reports(**reports)
    passes = _until(build_pipeline(pipeline), stop_after)
    instruments = _instruments(told)
    kinds = _kinds(told.remarks)
    form = form or _form(output)
    output = None if output == "-" else output
    if output is not None:
        check_target(output, form, [model, params])
    found = models.load(model, shapes, dtypes)
    values = models.feeds(found, params, seed) if check_numerics or params else None
    findings = findings_of(found.graph)
    with progress(len(passes), f"optimizing {found.graph.name}") as step, findings.active():
        result = run(
            found.graph,
            passes,
            mode=as_mode(mode),
            precise=precise,
            strict=strict,
            check=check_numerics,
            feeds=values,
            instruments=[*instruments, _stepper(step)],
        )
    _report(result, told, kinds)
    if form == "json":
        result = replace(result, graph=with_output_names(result.graph, found.graph))
    if output is not None:
        weights = _weights(result.graph, values) if values and params else {}

        def alike(graph: Graph) -> Result:
            with findings_of(graph, [findings]).active():
                made = run(graph, passes, mode=as_mode(mode), precise=precise)
            return replace(made, graph=with_output_names(made.graph, graph))

        sizes = OtherSizes(found)
        beside = sizes.results(alike) if form == "json" else []
        serves = not beside or sizes.are_served(result, beside)
        saved = save(
            result.graph,
            output,
            form,
            weights,
            frozen=mode == "inference",
            others=[other.graph for other in beside] if serves else (),
            opens=not is_of_numpy(found.graph),
        )
        for path in saved.paths:
            note(f"wrote {path}")
        if saved.sized or not serves:
            note(_for_sizes(found.graph))
        labels = models.unread_labels(found.graph, result.graph) if form == "json" else []
        if labels:
            note(_without(labels))
        if saved.arguments:
            first, *more = saved.arguments
            others = f" and {len(more)} more" if more else ""
            note(
                f"states are arguments of it: {first!r}{others}; with --params they are computed in"
            )
    if as_json:
        text = None if output is not None else emit(result.graph, form, alone=True)
        say_json(_document(result, output, form, text))
    elif output is None:
        say(emit(result.graph, form, alone=True))
    failed = any(receipt.status == "rolled back" for receipt in result.receipts)
    if failed and check_numerics:
        models.doubt_random(params)
    return int(failed)


def _for_sizes(graph: Graph) -> str:
    """What to say of a file that serves no other sizes."""
    data = graph.role("data")
    one = any((node.type.shape or (0,))[0] == 1 for node in data)
    hint = "; --shape with more than one sample may give a file for any number" if one else ""
    shapes = ", ".join(f"{node.name} {node.type.shape}" for node in data)
    return f"it serves data of these shapes alone, as passes went by them: {shapes}{hint}"


def _without(labels: Sequence[str]) -> str:
    """What to say of a file that has no labels, which a Module gives by name."""
    names = ", ".join(map(repr, labels))
    return (
        f"labels are no inputs of it: {names}; give a Module label_names=None and bind it to data"
        " alone, or keep losses (and score) with --mode training"
    )


def _weights(graph: Graph, values: Mapping[str, Any]) -> dict[str, Any]:
    return {n.name: values[n.name] for n in graph.inputs if n.op != "data" and n.name in values}


def _stepper(step: Callable[[str], object]) -> Instrument:
    from graphopt.api.inspecting import Snapshots

    return Snapshots(step)


def _until(passes: tuple[Pass, ...], stop_after: str | None) -> tuple[Pass, ...]:
    """The passes up to the first of that name."""
    if stop_after is None:
        return passes
    name = pass_name(stop_after)
    names = [pass_.name for pass_ in passes]
    if name not in names:
        usage(f"--stop-after: {name!r} is not in the pipeline ({', '.join(names) or 'empty'})")
    return passes[: names.index(name) + 1]


def _instruments(told: Reports) -> list[Instrument]:
    from graphopt.pipeline.instruments import DumpIR

    found: list[Instrument] = []
    if told.print_after is not None:
        found.append(_print_ir(told.print_after))
    if told.dump_dir is not None:
        folder = Path(told.dump_dir)
        if folder.exists() and not folder.is_dir():
            usage(f"--dump-dir: {told.dump_dir!r} is no folder")
        found.append(DumpIR(folder))
    return found


def _print_ir(when: str) -> PrintIR:
    from graphopt.pipeline.instruments import PrintIR

    write = lambda text: note(text.rstrip("\n"))  # noqa: E731 - a function would not be shorter
    if when == "changed":
        return PrintIR("changed", write)
    if when == "all":
        return PrintIR("all", write)
    if when == "failed":
        return PrintIR("failed", write)
    return PrintIR([pass_name(name.strip()) for name in when.split(",")], write)


def _kinds(text: str | None) -> frozenset[str]:
    if text is None:
        return frozenset()
    kinds = [kind.strip() for kind in text.split(",")]
    for kind in kinds:
        if kind not in (*KINDS, "all"):
            usage(f"--remarks: {unknown('kind', kind, KINDS)}; they are {', '.join(KINDS)}, all")
    return frozenset(KINDS if "all" in kinds else kinds)


def _form(output: str | None) -> str:
    suffix = Path(output).suffix if output else ""
    return {".json": "json", ".dot": "dot", ".gv": "dot"}.get(suffix, "text")


def _report(result: Result, told: Reports, kinds: frozenset[str]) -> None:
    note_failures(result.receipts)
    for remark in result.remarks:
        if remark.kind.value in kinds:
            note(str(remark))
    if told.timing:
        _timing(result.receipts).show(err=True)
    if told.stats:
        rows = [(r.pass_text, k, str(n)) for r in result.receipts for k, n in r.stats.items()]
        Table(("pass", "statistic", ">count"), rows).show(err=True)


def _timing(receipts: Sequence[Receipt]) -> Table:
    rows = [(r.pass_text, r.status, f"{r.time_ms:.1f}", f"{r.check_ms:.1f}") for r in receipts]
    spent, checked = sum(r.time_ms for r in receipts), sum(r.check_ms for r in receipts)
    total = ("(total)", "", f"{spent:.1f}", f"{checked:.1f}")
    return Table(("pass", "status", ">pass ms", ">check ms"), [*rows, total], last=True)


def _document(result: Result, output: str | None, form: str, text: str | None) -> dict[str, object]:
    return {
        "graph": result.graph.name,
        "form": form,
        "output": output,
        "text": text,
        "receipts": [receipt.as_dict() for receipt in result.receipts],
        "remarks": [remark.as_dict() for remark in result.remarks],
    }
