"""``graphopt passes``: what passes there are, read off their classes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import click

from graphopt.cli.console import Table, say, say_json
from graphopt.cli.docstrings import Docstring, parse_docstring
from graphopt.cli.verb import pass_name, usage, verb

if TYPE_CHECKING:
    from graphopt.pipeline.base import Pass


@dataclass(frozen=True)
class Option:
    """An option of a pass: a field of its class."""

    name: str
    type: str
    default: object
    about: str


@dataclass(frozen=True)
class Entry:
    """A pass as the catalogue shows it."""

    name: str
    aliases: tuple[str, ...]
    doc: Docstring
    options: tuple[Option, ...]
    modes: tuple[str, ...]
    needs_frozen: bool
    pipelines: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """A form for JSON."""
        return {
            "name": self.name,
            "summary": self.doc.summary,
            "aliases": self.aliases,
            "options": [vars(option) for option in self.options],
            "modes": self.modes,
            "needs_frozen": self.needs_frozen,
            "pipelines": self.pipelines,
            "doc": self.doc.text,
        }


@verb
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--markdown", is_flag=True, help="Write the whole catalogue as docs/passes.md.")
def command(name: str | None, markdown: bool, as_json: bool) -> None:
    """List the passes, or describe one.

    With NAME: what the pass guarantees, its options, and an example of its work.
    """
    if markdown and (as_json or name):
        usage("--markdown is for the whole catalogue, and not for --json")
    if name is not None:
        entry = describe(pass_name(name))
        return say_json(entry.as_dict()) if as_json else say(_page(entry))
    entries = catalogue()
    if as_json:
        from graphopt.passes import registry

        return say_json(
            {"passes": [e.as_dict() for e in entries], "pipelines": dict(registry.pipelines)}
        )
    if markdown:
        from graphopt.cli.catalogue_markdown import to_markdown

        return say(to_markdown(entries))
    return _show(entries)


def catalogue() -> list[Entry]:
    """All passes, in the order of the registry."""
    from graphopt.passes import registry

    return [describe(name) for name in registry.passes]


def describe(name: str) -> Entry:
    """A pass by its full name."""
    from graphopt.passes import registry

    cls = registry.pass_class(name)
    doc = parse_docstring(inspect.getdoc(cls) or "")
    return Entry(
        name,
        tuple(alias for alias, full in registry.aliases.items() if full == name),
        doc,
        _options(cls, doc),
        tuple(sorted(cls.modes)),
        cls.needs_frozen,
        tuple(pipeline for pipeline in registry.pipelines if name in _members(pipeline)),
    )


def _options(cls: type[Pass], doc: Docstring) -> tuple[Option, ...]:
    return tuple(
        Option(f.name, type(f.default).__name__, f.default, doc.attributes.get(f.name, ""))
        for f in fields(cls)
    )


def _members(pipeline: str) -> set[str]:
    """Full names of the passes of a named pipeline, without importing them."""
    from graphopt.passes import registry
    from graphopt.pipeline.spec import parse_items

    found: set[str] = set()
    for name, _ in parse_items(registry.pipelines[pipeline]):
        members = _members(name) if name in registry.pipelines else {name}
        found |= {registry.aliases.get(member, member) for member in members}
    return found


def _show(entries: list[Entry]) -> None:
    from graphopt.passes import registry

    rows = [
        (e.name, ", ".join(e.aliases), ",".join(e.modes), _option_texts(e), e.doc.summary)
        for e in entries
    ]
    columns = ("pass", "alias", "modes", "options", "what holds after it")
    Table(columns, rows, spare=("options", "alias")).show()
    say()
    pipelines = registry.pipelines.items()
    texts = [(name, text.replace(",", ", ") or "(empty)") for name, text in pipelines]
    Table(("pipeline", "passes"), texts).show()


def _option_texts(entry: Entry) -> str:
    return ", ".join(f"{option.name}={option.default}" for option in entry.options)


def _page(entry: Entry) -> str:
    lines = [entry.name, "=" * len(entry.name), "", entry.doc.text, ""]
    if entry.aliases:
        lines.append(f"alias:     {', '.join(entry.aliases)}")
    lines.append(f"modes:     {', '.join(entry.modes)}")
    if entry.needs_frozen:
        lines.append("needs:     parameters that never change (frozen)")
    lines += [f"option:    {o.name}: {o.type} = {o.default}" for o in entry.options]
    lines.append(f"pipelines: {', '.join(entry.pipelines) or 'none'}")
    return "\n".join(lines)
