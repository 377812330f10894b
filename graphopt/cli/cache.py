"""``graphopt cache``: compiled kernels and graphs that are kept on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graphopt.cli.console import note, say, say_json
from graphopt.cli.verb import verb
from graphopt.errors import GraphoptError
from graphopt.pipeline.remarks import counted

if TYPE_CHECKING:
    from graphopt.kernels.cache import Info


@verb
@click.argument("action", type=click.Choice(["info", "clear"]))
def command(action: str, as_json: bool) -> None:
    """Show what compiled kernels and graphs take on disk, or remove them.

    `info` tells where they are kept, how many there are and how large; `clear` removes them, and
    what was measured. Programs that run now keep theirs, and what is missing later is compiled
    again. It also tells who compiles new ones.

    The folder is the user's cache folder, or what the environment variable GRAPHOPT_CACHE_DIR
    names.
    """
    from graphopt.kernels import cache
    from graphopt.kernels.compilers import most, why_not

    if not cache.is_kept():
        note(f"{cache.wanted()} cannot be written to: what it lacks every process compiles anew")
    found = cache.info() if action == "info" else cache.clear()
    if action == "clear":
        _check_removed(cache.info())
    place = str(cache.wanted()).encode(errors="backslashreplace").decode()  # it may be no text
    if as_json:
        say_json(
            {
                "action": action,
                "folder": str(cache.wanted()),
                "kernels": found.kernels,
                "bridges": found.bridges,
                "graphs": found.graphs,
                "bytes": found.nbytes,
                "compilers": 0 if why_not() else most(),
            }
        )
    elif action == "info":
        say(f"folder   {place}")
        say(f"kernels  {found.kernels}")
        say(f"bridges  {found.bridges}")
        say(f"graphs   {found.graphs}")
        say(f"size     {_size(found.nbytes)}")
        say(f"made by  {_makers(most(), why_not())}")
    else:
        say(f"removed {_told(found)}, {_size(found.nbytes)}, from {place}")


def _check_removed(left: Info) -> None:
    if left.kernels or left.bridges or left.graphs:
        raise GraphoptError(
            f"{_told(left)} in {left.folder} could not be removed; see who owns the files"
        )


def _makers(most: int, why_not: str | None) -> str:
    if why_not is not None:
        return f"the processes that run them, as {why_not}"
    return "1 other process" if most == 1 else f"up to {most} other processes"


def _told(found: Info) -> str:
    kernels, bridges = counted(found.kernels, "kernels"), counted(found.bridges, "bridges")
    return f"{kernels}, {bridges} and {counted(found.graphs, 'graphs')}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"
