"""Symbols as Symbol JSON, with all that is in them."""

from __future__ import annotations

import json
from typing import Any


def text_of(symbol: Any) -> str:
    """The JSON of a Symbol; MXNet leaves out what ``mx.contrib.amp`` casts unless it is told."""
    text: str = symbol.tojson(remove_amp_cast=False)
    return text


def document_of(symbol: Any) -> dict[str, Any]:
    """What that JSON says."""
    document: dict[str, Any] = json.loads(text_of(symbol))
    return document
