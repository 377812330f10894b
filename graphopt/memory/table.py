"""Buffers as CSV: a heading with id, lower, upper and size, in any order, and one line for each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from graphopt.errors import ParseError
from graphopt.memory.buffers import Buffers, Integers, problem

COLUMNS = ("id", "lower", "upper", "size")
_LIMITS = np.iinfo(np.int64)


def read_buffers(path: str | Path) -> Buffers:
    """Read a CSV file of buffers; other columns, such as ``offset``, are passed over.

    Raises:
        ParseError: the text is malformed or a buffer breaks a rule of :class:`Buffers`; the message
            names file and line.
        OSError: the file cannot be read.
    """
    raw = Path(path).read_bytes()
    try:
        # Spreadsheets put a byte order mark first.
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ParseError(f"{path}:{line}: the file is not UTF-8 text") from None
    return parse_buffers(text, str(path))


def parse_buffers(text: str, source: str = "<text>") -> Buffers:
    """The buffers in a text of CSV.

    Args:
        text: a heading and lines.
        source: what messages call it.

    Raises:
        ParseError: as for :func:`read_buffers`.
    """
    rows = _rows(text, source)
    line, heading = next(rows, (1, []))
    if not heading:
        raise ParseError(f"{source}:{line}: the file is empty; start it with {','.join(COLUMNS)}")
    at = _places(heading, f"{source}:{line}")
    ids: list[str] = []
    lines: list[int] = []
    numbers: list[list[int]] = []
    for line, row in rows:
        where = f"{source}:{line}"
        if len(row) != len(heading):
            raise ParseError(
                f"{where}: {len(row)} fields, where the heading has {len(heading)} columns"
            )
        ids.append(row[at["id"]].strip())
        lines.append(line)
        numbers.append([_integer(row[at[name]], name, where) for name in COLUMNS[1:]])
    lower, upper, size = np.array(numbers, np.int64).reshape(-1, 3).T
    broken = problem(ids, lower, upper, size)
    if broken is not None:
        raise ParseError(f"{source}:{lines[broken[0]]}: {broken[1]}")
    return Buffers(ids, lower, upper, size)


def _rows(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """The number and fields of each line that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if any(field.strip() for field in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise ParseError(f"{source}:{reader.line_num}: malformed CSV: {error}") from None


def _places(heading: Sequence[str], where: str) -> dict[str, int]:
    names = [name.strip() for name in heading]
    for name in COLUMNS:
        if names.count(name) != 1:
            what = f"no column {name!r}" if name not in names else f"{name!r} is there twice"
            raise ParseError(f"{where}: {what} in the heading {','.join(names)!r}")
    return {name: names.index(name) for name in COLUMNS}


def _integer(text: str, name: str, where: str) -> int:
    digits = text.strip()
    number = digits.removeprefix("-")
    if not (number.isascii() and number.isdigit()):
        raise ParseError(f"{where}: {name} must be an integer, not {text!r}")
    # Python refuses to convert thousands of digits, with a message of its own.
    if len(number) > 20 or not _LIMITS.min <= int(digits) <= _LIMITS.max:
        raise ParseError(f"{where}: {name} does not fit 64 bits")
    return int(digits)


def to_csv(buffers: Buffers, offsets: Integers) -> str:
    """Lines ``id,lower,upper,size,offset`` under that heading."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "offset"])
    columns = (buffers.lower, buffers.upper, buffers.size, offsets)
    writer.writerows(zip(buffers.ids, *(column.tolist() for column in columns), strict=True))
    return text.getvalue()
