"""The catalogue of passes as docs/passes.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphopt.cli.catalogue import Entry

_HEAD = """\
# Passes

<!-- Made by `graphopt passes --markdown` (`make docs`) from the docstrings; edit those. -->

A pass takes a graph and returns one that computes the same. Pipelines are text:
`graphopt opt MODEL -p 'cse,fold-constants{max_bytes=1024}'`. Examples show graphs in their text
form.
"""


def to_markdown(entries: Sequence[Entry]) -> str:
    """The whole page, without the last newline; the same for the same passes."""
    parts = [_HEAD, *_index(entries), "", *_pipelines()]
    for entry in entries:
        parts += ["", *_section(entry)]
    return "\n".join(parts)


def _index(entries: Sequence[Entry]) -> Iterator[str]:
    yield "| pass | what holds after it |"
    yield "|---|---|"
    for entry in entries:
        yield f"| [{entry.name}](#{entry.name}) | {_cell(entry.doc.summary)} |"


def _pipelines() -> Iterator[str]:
    from graphopt.passes import registry

    yield "## Pipelines"
    yield ""
    for name, text in registry.pipelines.items():
        members = ", ".join(f"`{part.strip()}`" for part in text.split(",")) if text else "nothing"
        yield f"- **{name}**: {members}"


def _section(entry: Entry) -> Iterator[str]:
    yield f"## {entry.name}"
    yield ""
    yield _prose(entry.doc.summary)
    yield ""
    yield from _facts(entry)
    if entry.options:
        yield from ("", "| option | type | default | |", "|---|---|---|---|")
        for option in entry.options:
            about = _cell(option.about)
            yield f"| `{option.name}` | {option.type} | `{option.default}` | {about} |"
    for block in _blocks(entry.doc.blocks):
        yield ""
        yield block


def _facts(entry: Entry) -> Iterator[str]:
    modes = " and ".join(entry.modes)
    frozen = ", with frozen parameters" if entry.needs_frozen else ""
    yield f"- legal in: {modes}{frozen}"
    if entry.aliases:
        yield f"- alias: {', '.join(f'`{alias}`' for alias in entry.aliases)}"
    yield f"- in pipelines: {', '.join(entry.pipelines) or 'none'}"


def _blocks(blocks: Sequence[str]) -> Iterator[str]:
    """Paragraphs as Markdown; neighbouring indented ones are one block of code."""
    code: list[str] = []
    for block in blocks:
        if block.startswith("    "):
            code.append(block)
            continue
        if code:
            yield _fence(code)
            code = []
        yield _prose(re.sub(r"::$", ":", block))
    if code:
        yield _fence(code)


def _fence(blocks: Sequence[str]) -> str:
    return f"```\n{textwrap.dedent(chr(10).join(blocks))}\n```"


def _prose(text: str) -> str:
    """ReStructuredText's literals and roles as Markdown has them."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)


def _cell(text: str) -> str:
    return _prose(text).replace("|", "\\|")
