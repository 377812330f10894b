"""What MXNet's C++ writes to the process's stderr, past Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from graphopt.cli.verb import State


@contextmanager
def hushed() -> Iterator[None]:
    """Keep MXNet's notices (a symbol of an older version is upgraded) off stderr.

    Errors are exceptions and come through. With ``--debug`` nothing is hidden.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is not None and ctx.ensure_object(State).debug:
        yield
        return
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
