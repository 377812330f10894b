"""``graphopt pack``: places in one arena for buffers of known lifetime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.console import Table, note, say, say_json
from graphopt.cli.saving import check_target, write_files
from graphopt.cli.verb import read_stdin, usage, verb
from graphopt.errors import InputError, ParseError

if TYPE_CHECKING:
    from graphopt.memory import Buffers, Packing

#: Exit codes beside those that all verbs have.
INFEASIBLE, UNKNOWN = 3, 4


@verb
@click.argument("file", metavar="FILE")
@click.option(
    "--capacity",
    type=click.IntRange(1, 1 << 62),
    metavar="BYTES",
    help="Find a plan of at most so many bytes. Default: find the smallest.",
)
@click.option(
    "--alignment",
    type=click.IntRange(1, 1 << 62),
    default=1,
    metavar="BYTES",
    help="Offsets are multiples of it.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="The best plan found by then is taken.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the search's random choices.")
@click.option("-o", "--output", metavar="OUT", help="Write the plan as CSV; - is stdout.")
def command(
    file: str,
    capacity: int | None,
    alignment: int,
    time_limit: float,
    seed: int,
    output: str | None,
    as_json: bool,
) -> int:
    """Place buffers of known lifetime in as small an arena as possible.

    FILE is CSV with the columns id, lower, upper and size in any order; - is stdin. A buffer is
    live at the moments lower <= t < upper. OUT gets the column offset besides.

    Exit status: 0 a plan was found, and fits the capacity if there is one; 1 a problem, such as a
    malformed line; 2 wrong usage; 3 no plan fits the capacity, which is proved; 4 none was found in
    time. With 3 and 4 nothing is written to OUT.
    """
    from graphopt.memory import pack

    if output == "-" and as_json:
        usage("--json and -o - both write to stdout; name a file with -o")
    if output not in (None, "-"):
        check_target(str(output), "csv", [file])
    found = pack(
        _read(file), capacity=capacity, alignment=alignment, time_limit=time_limit, seed=seed
    )
    if as_json:
        say_json(found.as_dict())
    else:
        _table(found).show(err=output == "-")
    code = {"infeasible": INFEASIBLE, "unknown": UNKNOWN}.get(found.status, 0)
    if code:
        note(_verdict(found, capacity))
    elif output is not None:
        _write(found, output)
    return code


def _read(file: str) -> Buffers:
    from graphopt.memory.table import parse_buffers, read_buffers

    try:
        return parse_buffers(read_stdin(), "<stdin>") if file == "-" else read_buffers(file)
    except IsADirectoryError:
        usage(f"cannot read {file!r}: it is a folder")
    except UnicodeDecodeError:  # of stdin; a file's error names the line
        raise ParseError("<stdin>: it is no UTF-8 text") from None
    except OSError as error:
        raise InputError(f"cannot read {file!r}: {error.strerror or error}") from None


def _write(found: Packing, output: str) -> None:
    text = found.to_csv()
    if output == "-":
        say(text.removesuffix("\n"))
        return
    write_files({Path(output): lambda draft: draft.write_text(text, encoding="utf-8")})


def _table(found: Packing) -> Table:
    figures = {
        ">buffers": f"{len(found.buffers)}",
        ">arena": f"{found.arena}",
        ">lower bound": f"{found.lower_bound}",
        ">ratio": f"{found.ratio:.4f}",
        ">sum": f"{found.total}",
        ">seconds": f"{found.seconds:.2f}",
        "method": found.method,
        "status": found.status,
    }
    return Table(list(figures), [list(figures.values())])


def _verdict(found: Packing, capacity: int | None) -> str:
    if found.status == "infeasible":
        return f"no plan fits {capacity} bytes: {found.lower_bound} are needed at least"
    return (
        f"no plan for {capacity} bytes was found in time, and none is ruled out: the best takes"
        f" {found.arena}; raise --time-limit"
    )
