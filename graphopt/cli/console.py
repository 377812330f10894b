"""Writing: the product to stdout, commentary to stderr; tables, JSON, colour."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import click


def say(text: str = "") -> None:
    """Write a line of the product."""
    click.echo(text)


def note(text: str) -> None:
    """Write a line of commentary."""
    click.echo(text, err=True)


def say_json(data: Any) -> None:
    """Write a JSON document; numbers JSON has no word for become null."""
    click.echo(json.dumps(finite(data), indent=2, allow_nan=False))


def finite(data: Any) -> Any:
    """The data with null for every float that JSON has no word for."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return data


def is_rich(stream: IO[str] | None = None) -> bool:
    """Whether a stream takes colour and moving output: a terminal, and NO_COLOR is not set."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """The text in a colour where stdout shows colours."""
    return click.style(text, fg=colour) if is_rich() else text


@dataclass(frozen=True)
class Table:
    """Rows of texts under a heading.

    A column whose title starts with ``>`` is aligned to the right. ``last`` tells that the last row
    is a sum.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    last: bool = False

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

    def show(self, *, err: bool = False) -> None:
        """Write to stdout (or stderr): framed on a terminal, plain and never cut elsewhere."""
        stream = sys.stderr if err else sys.stdout
        if is_rich(stream):
            _show_rich(self, stream)
        else:
            click.echo(str(self), err=err)


_COLOURS = {"changed": "green", "refused": "yellow", "rolled back": "red", "unchanged": "dim"}


def _show_rich(table: Table, stream: IO[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for title in table.columns:
        right = title.startswith(">")
        drawn.add_column(
            title.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for number, row in enumerate(table.rows):
        if table.last and number == len(table.rows) - 1:
            drawn.add_section()
        drawn.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    Console(file=stream).print(drawn)
