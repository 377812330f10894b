"""The text of ``net.explain()``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from graphopt.backend.choice import Choice
from graphopt.compat import import_mxnet
from graphopt.frontend.blocks import describe
from graphopt.ir.graph import Graph
from graphopt.nn.any_size import AnySize
from graphopt.nn.calls import why_not_whole
from graphopt.nn.optimized import views_of
from graphopt.nn.ski_rental import SkiRental
from graphopt.nn.views import methods_of
from graphopt.nn.ways import Ways
from graphopt.pipeline.manager import Receipt, Result
from graphopt.pipeline.remarks import RemarkKind, counted

_SHOWN = 5
#: Passes whose remarks a user wants to read: there are few, with what was measured.
_TELLING = ("reroll-recurrence", "import-rnn", "hoist-lookups")


def explain(block: Any) -> str:
    """Per compiled signature: sizes, engine, what was done, what was not and why."""
    state = block.graphopt_state
    lines = [f"{describe(block)}, mode {state.config.mode!r}"]
    reason = state.reason or state.structure.hooked() or state.learns_in_python
    reason = reason or why_not_whole(block, state.config)
    # Without one it is compiled whole, but its methods ran, or it had hooks in some calls.
    reason = reason or "its methods ran, or hooks of its children"
    if state.ways:
        lines.append(f"its Python runs at every call, since {reason}")
        lines += [f"  {told}" for told in map(Ways.told, state.ways.values()) if told]
    if state.recorded is not None:
        lines += state.recorded.explain(reason)
    if state.fallback is not None:
        lines.append(f"taken child by child: {reason}")
        lines += [f"  {note}" for note in state.notes]
        if not state.config.record and not state.ways and not state.config.plans_memory:
            lines.append("  its own code calls operators one by one; record=True compiles them")
    if len(lines) == 1 and state.reason:
        lines.append(f"its Python ran, since {state.reason}")
    for each in views_of(block)[1:]:
        told = [text for text in map(Ways.told, each.graphopt_state.ways.values()) if text]
        lines += [f"  {describe(each)}: {text}" for text in told]
    entries = block._graphopt_entries()
    rented = [line for each in views_of(block) for line in _rented(each)]
    lines += rented
    if not entries and not rented:
        lines.append("nothing compiled yet: it happens at the first call" + _not_compiled(block))
    for entry in entries:
        title = f"{entry.mode} ({entry.types})"
        built = entry.built
        choice = built.lowered.choice
        lines += explain_result(entry.original, built.result, choice, title, built.told)
    return "\n".join(lines)


def _not_compiled(block: Any) -> str:
    """Which methods of a HybridBlock MXNet runs; those of a plain Block have optimized children."""
    hybrid = import_mxnet().gluon.HybridBlock
    if not isinstance(block, hybrid):
        return ""
    found = methods_of(block._graphopt_base)
    names = sorted(n for n in found if not n.startswith("_") and not hasattr(hybrid, n))
    return f" of the Block itself; MXNet runs its methods {', '.join(names)}" if names else ""


def _rented(block: Any) -> list[str]:
    """Calls that nothing was compiled for."""
    compiled = block.graphopt_state.compiled
    return explain_rented(describe(block), compiled.renting.rule, compiled.other_sizes.graphs)


def explain_rented(name: str, rule: SkiRental, graphs: Sequence[AnySize]) -> list[str]:
    """Lines about calls that nothing was compiled for, and the graphs that ran some of them."""
    if not rule.plain_calls:
        return []
    at_any_size = sum(graph.calls for graph in graphs)
    return [
        f"{name}: {counted(rule.plain_calls, 'calls')} with"
        f" {counted(rule.not_compiled, 'more types', 'more type')} of inputs"
        " were not worth compiling for yet:"
        f" {at_any_size} ran a graph for any size, {rule.plain_calls - at_any_size} as in MXNet",
        *(f"  at any size: {graph.told}" for graph in graphs),
    ]


def explain_result(
    original: Graph, result: Result, choice: Choice, title: str, parameters: str = ""
) -> list[str]:
    """Lines about one compiled graph, and how it has its parameters."""
    receipts = result.receipts
    lines = [f"{original.name}, {title}"]
    if receipts:
        first, last = receipts[0].before, receipts[-1].after
        earlier = " (passes run earlier)" if result.is_remembered else ""
        lines.append(f"  operator calls {first.calls} -> {last.calls}{earlier}")
    if choice.engine:
        times = ", ".join(f"{name} {ms:.2f} ms" for name, ms in choice.measured_ms.items())
        how = "measured earlier" if choice.is_remembered else "measured"
        lines.append(f"  runs on: {choice.engine}" + (f" ({how}: {times})" if times else ""))
    if choice.like:
        lines.append(f"  measured for other sizes: {choice.like}")
    if parameters:
        lines.append(f"  parameters: {parameters}")
    if choice.memory:
        lines.append(f"  memory: {choice.memory}")
    if choice.weights:
        lines.append(f"  weights: {choice.weights}")
    lines += [f"  measured and changed: {text}" for text in _grouped(choice.tuning)]
    for name, why in choice.failed.items():
        lines.append(f"  not on {name}: {why}")
    reasons = {receipt.reason for receipt in receipts}
    if len(receipts) > 1 and len(reasons) == 1 and "" not in reasons:
        return [*lines, f"  no pass runs: {min(reasons)}"]
    for receipt in receipts:
        if receipt.stats and not receipt.reason:
            stats = (counted(value, key) for key, value in receipt.stats.items() if value)
            lines.append(f"  {receipt.pass_text}: {', '.join(stats)}")
            lines += _told(result, receipt.pass_text.partition("{")[0])
    for (status, reason), names in _refused(receipts).items():
        why = reason if len(names) == 1 else _ONE.sub(_of_several, reason)
        lines.append(f"  {', '.join(names)} {status}: {why}")
    return lines + _missed(result)


def _refused(receipts: Iterable[Receipt]) -> dict[tuple[str, str], list[str]]:
    """Passes that did not run or were rolled back, by what became of them and why."""
    found: dict[tuple[str, str], list[str]] = {}
    for receipt in receipts:
        if receipt.reason:
            found.setdefault((receipt.status, receipt.reason), []).append(receipt.pass_text)
    return found


#: How reasons of one pass begin.
_ONE = re.compile(r"^it (needs|would)\b")


def _of_several(one: re.Match[str]) -> str:
    return f"they {one[1].removesuffix('s')}"


def _grouped(tuning: Sequence[str]) -> list[str]:
    """What was measured, once for layers that are alike, and for those of one name."""
    times: dict[tuple[str, str], list[list[str]]] = {}
    for text in tuning:
        name, _, what = text.partition(": ")
        times.setdefault((name, _MS.sub(" {} ms", what)), []).append(_MS.findall(what))
    groups: dict[str, list[str]] = {}
    for (name, what), found in times.items():
        told = what.format(*(_span(column) for column in zip(*found, strict=True)))
        groups.setdefault(told, []).extend([name] * len(found))
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {what}"
        for what, names in groups.items()
    ]


_MS = re.compile(r" ([\d.]+) ms\b")


def _span(numbers: Sequence[str]) -> str:
    least, most = min(numbers, key=float), max(numbers, key=float)
    return least if least == most else f"{least} to {most}"


def _told(result: Result, pass_name: str) -> list[str]:
    """What a pass did, where it says so for each of few nodes."""
    if pass_name not in _TELLING:
        return []
    found = [r for r in result.remarks if r.kind is RemarkKind.PASSED and r.pass_name == pass_name]
    lines = [f"    {', '.join(remark.nodes)}: {remark.message}" for remark in found[:_SHOWN]]
    return lines + ([f"    and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])


def _missed(result: Result) -> list[str]:
    refused = {r.reason for r in result.receipts}
    counts: Counter[str] = Counter()
    example: dict[str, str] = {}
    for remark in result.remarks:
        if remark.kind is RemarkKind.MISSED and remark.message not in refused:
            text = f"{remark.pass_name}: {remark.message}"
            counts[text] += 1
            if remark.nodes:
                example.setdefault(text, remark.nodes[0])
    lines = []
    for text, count in counts.most_common(_SHOWN):
        where = f" (at {example[text]!r}" if text in example else ""
        more = f" and {count - 1} more)" if where and count > 1 else ")" if where else ""
        lines.append(f"  not done: {text}{where}{more}")
    return lines
