"""Writing: the product to stdout, commentary to stderr; tables, JSON, colour."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import click

from graphopt.api.jsonable import finite


def say(text: str = "") -> None:
    """Write a line of the product."""
    click.echo(text)


def note(text: str) -> None:
    """Write a line of commentary; it is lost where stderr takes none, as on a full disk."""
    try:
        click.echo(text, err=True)
    except BrokenPipeError:
        raise
    except OSError:
        return


def say_json(data: Any) -> None:
    """Write a JSON document; numbers JSON has no word for become null."""
    click.echo(json.dumps(finite(data), indent=2, allow_nan=False))


def is_rich(stream: IO[str] | None) -> bool:
    """Whether a stream takes colour and moving output: a terminal, and NO_COLOR is not set.

    ``None``, as Python has for one that is closed, takes nothing.
    """
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def paint(text: str, colour: str) -> str:
    """The text in a colour where stdout shows colours."""
    return click.style(text, fg=colour) if is_rich(sys.stdout) else text


@dataclass(frozen=True)
class Table:
    """Rows of texts under a heading.

    A column whose title starts with ``>`` is aligned to the right. ``last`` tells that the last row
    is a sum. ``spare`` names the columns that a terminal too narrow for all does without, the most
    dispensable first.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    last: bool = False
    spare: Sequence[str] = ()

    def __str__(self) -> str:
        """Aligned columns, two blanks apart, as wide as they have to be."""
        titles = [title.lstrip(">") for title in self.columns]
        lines = [titles, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if title.startswith(">") else cell.ljust(width)
                for cell, width, title in zip(line, widths, self.columns, strict=True)
            ).rstrip()
            for line in lines
        )

    def without(self, column: str) -> Table:
        """The table without a column."""
        at = list(self.columns).index(column)
        rows = [[*row[:at], *row[at + 1 :]] for row in self.rows]
        return replace(self, columns=[c for c in self.columns if c != column], rows=rows)

    def show(self, *, err: bool = False) -> None:
        """Write to stdout (or stderr): framed on a terminal, plain and never cut elsewhere."""
        stream = sys.stderr if err else sys.stdout
        if is_rich(stream):
            _show_rich(self, stream)
        else:
            (note if err else say)(str(self))


_COLOURS = {"changed": "green", "refused": "yellow", "rolled back": "red", "unchanged": "dim"}


def _show_rich(table: Table, stream: IO[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    table, dropped = _fitted(table, width)
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for title in table.columns:
        right = title.startswith(">")
        drawn.add_column(
            title.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for number, row in enumerate(table.rows):
        if table.last and number == len(table.rows) - 1:
            drawn.add_section()
        drawn.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    console = Console(file=stream, width=width, highlight=False)
    console.print(drawn)
    if dropped:
        names = ", ".join(column.lstrip(">") for column in dropped)
        console.print(f"[dim]a wider terminal shows {names} too[/dim]")


def _fitted(table: Table, width: int) -> tuple[Table, list[str]]:
    """The table without as many spare columns as it takes to fit, and what was left out."""
    dropped: list[str] = []
    for column in table.spare:
        # Rich needs one blank more between columns than the plain form.
        if max(map(len, str(table).splitlines())) + len(table.columns) - 1 <= width:
            break
        table = table.without(column)
        dropped.append(column)
    return table, dropped
