"""Docstrings in parts: summary, prose, attributes, and the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"    (\w+): +(.*)")


@dataclass(frozen=True)
class Docstring:
    """A cleaned docstring.

    ``blocks`` are its paragraphs but the summary and the section of attributes; a block of code is
    indented as it stands in the text.
    """

    text: str
    summary: str
    attributes: Mapping[str, str]
    blocks: tuple[str, ...]


def parse_docstring(text: str) -> Docstring:
    """Split a docstring that :func:`inspect.getdoc` has cleaned."""
    blocks = [block for block in re.split(r"\n\s*\n", text.strip()) if block.strip()]
    attributes: dict[str, str] = {}
    kept = []
    for block in blocks[1:]:
        head, _, body = block.partition("\n")
        if head in ("Attributes:", "Args:"):
            attributes |= _entries(body)
        else:
            kept.append(block)
    summary = " ".join(blocks[0].split()) if blocks else ""
    return Docstring(text, summary, attributes, tuple(kept))


def _entries(body: str) -> dict[str, str]:
    """``name: what it is`` a line, continued on lines that are indented deeper."""
    found: dict[str, str] = {}
    name = ""
    for line in body.splitlines():
        match = _ENTRY.fullmatch(line)
        if match:
            name = match[1]
            found[name] = match[2].strip()
        elif name:
            found[name] += f" {line.strip()}"
    return found
