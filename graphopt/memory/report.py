"""A memory plan for people: text, a drawing of characters, a table."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphopt.errors import InputError

if TYPE_CHECKING:
    from graphopt.memory.memory_plan import MemoryPlan, Row

_BLOCKS = " ▁▂▃▄▅▆▇█"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_PHASES = {"forward": "f", "backward": "b", "recompute": "r"}


def amount(nbytes: float) -> str:
    """Bytes with three digits or so, as ``1.25 MiB``."""
    unit = 0
    while nbytes >= 1024 and unit < len(_UNITS) - 1:
        nbytes, unit = nbytes / 1024, unit + 1
    return f"{nbytes:.0f} B" if unit == 0 else f"{nbytes:.4g} {_UNITS[unit]}"


def report(plan: MemoryPlan, top: int = 10) -> str:
    """The plan, its peak and what makes it, other layouts, and live bytes over time."""
    if top < 0:
        raise InputError(f"top must be at least 0, not {top}")
    kind = "training step" if plan.training else "forward"
    operations = plan.schedule.operations
    lines = [
        f"{plan.name}: {kind}, {len(operations)} operators, {len(plan.schedule.tensors)} tensors in"
        f" {len(plan.buffers)} buffers",
        f"arena        {amount(plan.arena)}, {plan.packing.ratio:.4g} x the lower bound"
        f" {amount(plan.lower_bound)} ({plan.packing.status})",
    ]
    if plan.reported_bytes is not None:
        lines.append(f"MXNet's own  {amount(plan.reported_bytes)}{_times(plan)}")
    given = ", ".join(f"{kind} {amount(n)}" for kind, n in plan.schedule.given.items())
    if given:
        lines.append(f"not counted  {given}")
    if plan.uncounted:
        lines.append(f"             what {_few(plan.uncounted)} compute in, sized by their levels")
    if plan.repeated:
        lines.append(
            f"again        {len(plan.repeated)} operators are computed again: {_few(plan.repeated)}"
        )
    if operations:
        at = plan.peak_step
        lines.append(
            f"peak         {amount(plan.peak)} at step {at} of {len(operations)}:"
            f" {operations[at].name} ({operations[at].op}, {operations[at].phase})"
        )
    if plan.order is not None and plan.order.peak < plan.peak:
        less = f"peak {amount(plan.order.peak)} ({plan.order.method})"
        lines.append(f"reordered    {less}")
    if plan.rows:
        lines += ["", *_table(plan.rows)]
    lines += ["", "live bytes by step", plan.timeline()]
    lines += ["", *_layers(plan, top), "", *_residents(plan, top)]
    return "\n".join(lines)


def _few(names: Sequence[str], count: int = 3) -> str:
    rest = len(names) - count
    return ", ".join(names[:count]) + (f" and {rest} more" if rest > 0 else "")


def _times(plan: MemoryPlan) -> str:
    if not plan.reported_bytes or not plan.arena:
        return " (in whole MiB)"
    return f" (in whole MiB), {plan.reported_bytes / plan.arena:.4g} x this plan"


def _table(rows: tuple[Row, ...]) -> list[str]:
    cells = [("layout", "bytes", "lower bound", "MXNet's own")]
    for row in rows:
        own = "" if row.reported is None else amount(row.reported)
        cells.append((row.name, amount(row.nbytes), amount(row.lower_bound), own))
    widths = [max(len(line[i]) for line in cells) for i in range(4)]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(line[i].rjust(widths[i]) for i in (1, 2, 3))]
        ).rstrip()
        for line in cells
    ]


def _layers(plan: MemoryPlan, top: int) -> list[str]:
    layers = list(plan.layers.items())
    lines = ["bytes at the peak by layer"]
    lines += [f"  {amount(n):>10}  {n / plan.peak:6.1%}  {layer}" for layer, n in layers[:top]]
    rest = layers[top:]
    if rest:
        total = sum(nbytes for _, nbytes in rest)
        lines.append(f"  {amount(total):>10}  {total / plan.peak:6.1%}  {len(rest)} more layers")
    return lines


def _residents(plan: MemoryPlan, top: int) -> list[str]:
    found = plan.residents
    lines = ["tensors at the peak"]
    lines += [f"  {amount(r.nbytes):>10}  {r.phase:<9}  {r.name}" for r in found[:top]]
    if found[top:]:
        lines.append(
            f"  {amount(sum(r.nbytes for r in found[top:])):>10}  in {len(found) - top} more"
        )
    return lines


def timeline(plan: MemoryPlan, width: int = 64, height: int = 8) -> str:
    """Live bytes over the steps: a column for every so many steps, its highest value.

    Below it stands the phase of each column: ``f``orward, ``b``ackward, ``r``ecompute.
    """
    if width < 1 or height < 1:
        raise InputError(f"a timeline needs at least 1 column and 1 row, not {width} by {height}")
    live = plan.liveness.live_bytes
    if not len(live):
        return "(nothing runs)"
    width = min(width, len(live))
    edges = [at * len(live) // width for at in range(width + 1)]
    columns = [int(live[a:b].max()) for a, b in itertools.pairwise(edges)]
    most = max(max(columns), 1)
    eighths = [-(-value * height * 8 // most) for value in columns]
    margin = max(len(amount(most)), 3)
    lines = []
    for row in range(height - 1, -1, -1):
        label = amount(most) if row == height - 1 else "0 B" if row == 0 else ""
        drawn = "".join(_BLOCKS[min(8, max(0, value - 8 * row))] for value in eighths)
        lines.append(f"{label:>{margin}} |{drawn}".rstrip())
    phases = "".join(_PHASES[plan.schedule.operations[a].phase] for a in edges[:-1])
    if plan.training:
        lines.append(f"{'':>{margin}}  {phases}")
    return "\n".join(lines)


def to_csv(plan: MemoryPlan) -> str:
    """One line per buffer; tensors that share it are set apart by blanks."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("id", "lower", "upper", "size", "offset", "layer", "tensors"))
    buffers, tensors = plan.buffers, plan.schedule.tensors
    for number, members in enumerate(plan.liveness.members):
        table.writerow(
            (
                buffers.ids[number],
                int(buffers.lower[number]),
                int(buffers.upper[number]),
                int(buffers.size[number]),
                int(plan.offsets[number]),
                tensors[members[0]].layer,
                " ".join(tensors[member].name for member in members),
            )
        )
    return text.getvalue()
