"""What all verbs have in common: options, state, and errors of usage."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from graphopt.cli.console import note
from graphopt.errors import GraphoptError

if TYPE_CHECKING:
    from graphopt.pipeline.base import Mode, Pass
    from graphopt.pipeline.manager import Receipt

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class State:
    """What the global options say."""

    debug: bool = False


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(State).debug = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_set_debug,
    help="Show the traceback of an error.",
)

json_option = click.option(
    "as_json", "--json", is_flag=True, help="Write one JSON document to stdout, nothing else."
)

mode_option = click.option(
    "--mode",
    type=click.Choice(["inference", "training"]),
    default="inference",
    show_default=True,
    help="What has to stay the same: outputs, or outputs and gradients.",
)


all_option = click.option(
    "everything",
    "--all",
    is_flag=True,
    help="Show passes that changed nothing, too, as is done for a pipeline given by -p.",
)


def is_pipeline_given() -> bool:
    """Whether the command line names the passes."""
    source = click.get_current_context().get_parameter_source("pipeline")
    return source is ParameterSource.COMMANDLINE


def idle_line(count: int) -> str:
    """The line for passes that are not shown, as they changed nothing and have nothing to tell."""
    told = "1 pass changed nothing; --all shows it"
    return told if count == 1 else f"{count} passes changed nothing; --all shows them"


def pipeline_option(default: str | None = "default") -> Decorator:
    """``-p PIPELINE``."""
    presence = {"required": True} if default is None else {"default": default, "show_default": True}
    return click.option(
        "-p",
        "--pipeline",
        metavar="PIPELINE",
        help="Passes such as 'cse,fold-batch-norm', with {option=value}, or a named pipeline.",
        **presence,
    )


def verb(function: Callable[..., Any]) -> click.Command:
    """A command of this function, with the options every verb has."""
    made = click.command(context_settings={"max_content_width": 100})(
        debug_option(json_option(function))
    )
    assert isinstance(made, click.Command)
    return made


def build_pipeline(text: str) -> tuple[Pass, ...]:
    """The passes of a pipeline text.

    Raises:
        UsageError: malformed, or an unknown name or option.
    """
    from graphopt.passes import registry
    from graphopt.pipeline.spec import build

    try:
        return build(text, registry)
    except GraphoptError as error:
        usage(str(error))


def pass_name(name: str) -> str:
    """The full name behind a pass's name or alias.

    Raises:
        UsageError: there is no such pass.
    """
    from graphopt.passes import registry

    full = registry.aliases.get(name, name)
    if full not in registry.passes:
        usage(unknown("pass", name, [*registry.passes, *registry.aliases]))
    return full


def as_mode(text: str) -> Mode:
    """The checked value of ``--mode``."""
    return "training" if text == "training" else "inference"


def note_failures(receipts: Iterable[Receipt]) -> None:
    """Say on stderr which passes were rolled back, and why."""
    for receipt in receipts:
        if receipt.status == "rolled back":
            note(f"rolled back: {receipt.pass_text}: {receipt.reason}")


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name nobody knows, with the closest that is known."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"unknown {what} {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def read_stdin() -> str:
    """The text on stdin.

    Raises:
        UsageError: it is closed.
    """
    if sys.stdin is None:
        usage("cannot read '-': stdin is closed")
    return sys.stdin.read()


def usage(message: str) -> NoReturn:
    """End the verb with exit code 2.

    Raises:
        UsageError: always.
    """
    raise click.UsageError(message, click.get_current_context(silent=True)) from None
