"""``graphopt diff``: two graphs by structure."""

from __future__ import annotations

import click

from graphopt.cli import models
from graphopt.cli.console import note, paint, say, say_json
from graphopt.cli.inputs import Shape, type_options
from graphopt.cli.verb import usage, verb

_COLOURS = {"-": "red", "+": "green", "~": "yellow"}


@verb
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@type_options
def command(
    before: str,
    after: str,
    shapes: dict[str, Shape],
    dtypes: dict[str, str],
    as_json: bool,
) -> int:
    """Compare two graphs by structure; exit 1 if they differ.

    A and B are models as for the other verbs. Lines start with - for what is only in A, + for what
    is only in B, and ~ for a node of one name that differs (the line under it is B's). Names of
    operators do not count: nodes that compute the same in the same way are equal.
    """
    from graphopt.ir.diff import diff

    if before == after == "-":
        usage("only one of A and B can be stdin")
    left, right = (models.load(model, shapes, dtypes).graph for model in (before, after))
    found = diff(left, right)
    if as_json:
        say_json(
            {
                "equal": found.is_empty,
                "removed": found.removed,
                "added": found.added,
                "changed": [{"before": old, "after": new} for old, new in found.changed],
            }
        )
    elif not found.is_empty:
        for line in str(found).splitlines():
            say(paint(line, _COLOURS[line[0]]) if line[0] in _COLOURS else line)
    note("the graphs are equal" if found.is_empty else "the graphs differ")
    return int(not found.is_empty)
