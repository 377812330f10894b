"""The command ``graphopt``: the table of verbs, and what ends with which exit code."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any

import click

from graphopt import __version__
from graphopt.cli.console import note
from graphopt.cli.verb import State, debug_option
from graphopt.errors import GraphoptError

FINE, PROBLEM, WRONG_USAGE = 0, 1, 2
INTERRUPTED, BROKEN_PIPE = 130, 141  # as a shell reports SIGINT and SIGPIPE

#: verb -> (module, what it does). ``--help`` reads this table and imports no verb.
VERBS = {
    "inspect": ("inspect", "Show what each pass does to a model: size, bytes, time, error."),
    "opt": ("opt", "Run passes over a model and write the graph they make."),
    "passes": ("catalogue", "List the passes, or describe one."),
    "explain": ("explain", "Tell what was done to a model, what was not, and why."),
    "diff": ("diff", "Compare two graphs by structure; exit 1 if they differ."),
    "bisect": ("bisect", "Find the first pass that changes what a model computes."),
    "view": ("view", "Write an HTML page that steps through the passes."),
    "pack": ("pack", "Place buffers of known lifetime in as small an arena as possible."),
    "cache": ("cache", "Show what compiled kernels and graphs take on disk, or remove them."),
    "demo": ("demo", "Optimize built-in models; nothing is downloaded."),
}


class Verbs(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"graphopt.cli.{VERBS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb.

        Raises:
            UsageError: there is none of that name; a close one is suggested.
        """
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            near = difflib.get_close_matches(name, VERBS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"they are {', '.join(VERBS)}"
            raise click.UsageError(f"unknown verb {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, about) for verb, (_, about) in VERBS.items()])


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    subcommand_metavar="VERB [ARGUMENTS]...",
    epilog="`graphopt VERB --help` tells more. Exit status: 0 fine, 1 a problem, 2 wrong usage.",
)
@click.version_option(__version__, prog_name="graphopt", message="%(prog)s %(version)s")
@debug_option
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Compiler passes for Apache MXNet graphs."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(WRONG_USAGE)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code; nothing but a code leaves this function.

    Args:
        argv: arguments without the program's name; default: those of the process.
    """
    state = State()
    try:
        code = _run(argv, state)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    except click.UsageError as error:
        return _fail(state, error.format_message(), WRONG_USAGE, error.ctx)
    except (click.Abort, KeyboardInterrupt):
        return _fail(state, "interrupted", INTERRUPTED)
    except (GraphoptError, OSError) as error:
        return _fail(state, str(error), PROBLEM)
    except MemoryError as error:
        return _fail(state, f"not enough memory: {error}".rstrip(": "), PROBLEM)
    except Exception as error:  # noqa: BLE001 - a bug must not end in a traceback unasked
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return _fail(state, f"internal error, {what}; --debug shows where", PROBLEM)
    return code


def _run(argv: list[str] | None, state: State) -> int:
    # MXNet tells on stderr which subgraph backend it binds with, for every graph that is timed.
    os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
    if sys.stdout is None:
        raise GraphoptError("stdout is closed; send it to /dev/null if nobody is to read it")
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        # Not through click's own main(), which ends the process when a pipe breaks.
        with cli.make_context("graphopt", arguments, obj=state) as ctx:
            found: Any = cli.invoke(ctx)
    except click.exceptions.Exit as done:
        return done.exit_code
    return found if isinstance(found, int) else FINE


def _fail(state: State, message: str, code: int, ctx: click.Context | None = None) -> int:
    if state.debug:
        import traceback

        traceback.print_exc()
    note(f"{ctx.command_path if ctx else 'graphopt'}: error: {message}")
    return code


def _discard_stdout() -> None:
    """Keep the interpreter from raising once more when it flushes at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is no file
        return
