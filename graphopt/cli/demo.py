"""``graphopt demo``: built-in models."""

from __future__ import annotations

import click

from graphopt.cli.verb import verb


@verb
@click.option("--quick", is_flag=True, help="Smaller models, shorter measurements.")
def command(quick: bool, as_json: bool) -> int:
    """Optimize built-in models; nothing is downloaded.

    Shows what the passes do to models that come with graphopt, checks that each still computes the
    same, and measures what is gained. Exit status 1 tells that one does not.
    """
    from graphopt.demo.main import run_demo

    return run_demo(quick=quick, json=as_json)
