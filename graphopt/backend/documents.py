"""Symbols as Symbol JSON, with all that is in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def text_of(symbol: Any) -> str:
    """The JSON of a Symbol; MXNet leaves out what ``mx.contrib.amp`` casts unless it is told."""
    text: str = symbol.tojson(remove_amp_cast=False)
    return text


def document_of(symbol: Any) -> dict[str, Any]:
    """What that JSON says."""
    document: dict[str, Any] = json.loads(text_of(symbol))
    return document


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The JSON of a Symbol whose nodes, by their names, have others."""
    document = json.loads(text)
    _rename(document, names)
    return json.dumps(document, ensure_ascii=False)  # MXNet reads no \\u escapes


def _rename(document: dict[str, Any], names: Mapping[str, str]) -> None:
    for node in document["nodes"]:
        node["name"] = names.get(node["name"], node["name"])
        for inner in node.get("subgraphs", ()):
            _rename(inner, names)
