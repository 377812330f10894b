"""What is printed when the benches are through."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from graphopt.cli.console import Table

#: Name under which a test's report carries its lines, from process to process.
PROPERTY = "graphopt_bench"


@dataclass(frozen=True)
class Record:
    """A line of a table.

    Attributes:
        table: title of the table.
        workload: title of the line.
        figures: measured values; a name says its unit.
        ratios: how many times faster, by what it is compared with; a table ends with their
            geometric means.
        targets: what a mean of ratios is to reach at least, or with a figure's name, what that
            figure is to reach at most.
        notes: printed below the table, each once.
    """

    table: str
    workload: str
    figures: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    targets: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def numbers(self) -> dict[str, float]:
        """Figures and ratios, for the benchmark's own record."""
        return self.figures | {f"speed over {name}": value for name, value in self.ratios.items()}

    def as_text(self) -> str:
        """A line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Record:
        """The record behind :meth:`as_text`."""
        return cls(**json.loads(text))


def tables(records: Iterable[Record]) -> list[str]:
    """The text of every table, in the order of the first line of each."""
    by_title: dict[str, list[Record]] = {}
    for record in records:
        by_title.setdefault(record.table, []).append(record)
    return [_table(title, lines) for title, lines in by_title.items()]


def _table(title: str, lines: Sequence[Record]) -> str:
    figures = list(dict.fromkeys(name for line in lines for name in line.figures))
    ratios = list(dict.fromkeys(name for line in lines for name in line.ratios))
    rows = [_cells(line, figures, ratios) for line in lines]
    targets = {name: limit for line in lines for name, limit in line.targets.items()}
    if ratios and len(lines) > 1:
        means = [
            _mean(line.ratios[name] for line in lines if name in line.ratios) for name in ratios
        ]
        rows.append(["(geometric mean)", *[""] * len(figures), *(f"{m:.2f}x" for m in means)])
    if ratios and any(name in targets for name in ratios):
        wanted = [f"{targets[name]:.2f}x" if name in targets else "" for name in ratios]
        rows.append(["(target)", *[""] * len(figures), *wanted])
    columns = ["", *(f">{name}" for name in figures), *(f">over {name}" for name in ratios)]
    notes = dict.fromkeys(note for line in lines for note in line.notes)
    missed = [text for line in lines for text in _missed(line)]
    return "\n".join([title, str(Table(columns, rows)), *missed, *notes])


def _cells(line: Record, figures: Sequence[str], ratios: Sequence[str]) -> list[str]:
    values = [_number(line.figures[name]) if name in line.figures else "" for name in figures]
    times = [f"{line.ratios[name]:.2f}x" if name in line.ratios else "" for name in ratios]
    return [line.workload, *values, *times]


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.2e}" if 0 < abs(value) < 1e-2 else f"{value:.2f}"


def _missed(line: Record) -> list[str]:
    return [
        f"over its limit: {line.workload}, {name}: {line.figures[name]:.3g}, limit {limit:g}"
        for name, limit in line.targets.items()
        if name in line.figures and line.figures[name] > limit
    ]


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
