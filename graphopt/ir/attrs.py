"""Node attributes: immutable, key-sorted, with Python values.

MXNet stores every attribute as a string. They are parsed once, when a graph is lifted, and
written back when it is lowered. Attributes with a dunder name (``__lr_mult__``, ``__init__`` ...)
belong to MXNet's Python side and stay the strings they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from graphopt.errors import ParseError

#: bool, int, float, str, None, or a (nested) tuple of those.
AttrValue = Any

#: More than any number MXNet holds, and less than what Python refuses to convert.
_MAX_DIGITS: Final = 1000
_MAX_DEPTH: Final = 50

_INT = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")
_WORDS: Final[dict[str, bool | None]] = {
    "True": True,
    "False": False,
    "true": True,
    "false": False,
    "None": None,
}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


class Attrs(Mapping[str, AttrValue]):
    """An immutable, hashable mapping that iterates in key order."""

    __slots__ = ("_items", "_text")

    def __init__(self, values: Mapping[str, AttrValue] | None = None, **more: AttrValue) -> None:
        """Freeze ``values`` and ``more``; lists become tuples."""
        merged = {**(values or {}), **more}
        self._items: dict[str, AttrValue] = {key: _freeze(merged[key]) for key in sorted(merged)}
        self._text: str | None = None

    def __getitem__(self, key: str) -> AttrValue:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    @property
    def text(self) -> str:
        """The printed form, which is also what equality and hash go by (``1`` is not ``True``)."""
        if self._text is None:
            self._text = print_attrs(self)
        return self._text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Attrs) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def flag(self, key: str) -> bool:
        """Whether a boolean attribute is there and set."""
        return self.get(key) in (True, 1, "True", "true", "1")

    def set(self, **changes: AttrValue) -> Attrs:
        """A copy with ``changes`` applied."""
        return Attrs(self._items, **changes)

    def without(self, *keys: str) -> Attrs:
        """A copy that lacks ``keys``."""
        return Attrs({key: value for key, value in self._items.items() if key not in keys})

    def __repr__(self) -> str:
        return f"Attrs({self.text})"


EMPTY: Final = Attrs()


def _freeze(value: AttrValue) -> AttrValue:
    return tuple(_freeze(item) for item in value) if isinstance(value, (list, tuple)) else value


def from_mxnet(attrs: Mapping[str, str], *, raw: bool = False) -> Attrs:
    """Parse MXNet's attribute strings; with ``raw`` (operator ``Custom``) keep them as strings."""
    if not attrs:
        return EMPTY
    return Attrs(
        {key: text if raw or key.startswith("__") else _value(text) for key, text in attrs.items()}
    )


def _value(text: str) -> AttrValue:
    """The Python value of one MXNet attribute string; anything not plainly a value is a string."""
    stripped = text.strip()
    if stripped in _WORDS:
        return _WORDS[stripped]
    scalar = _number(stripped)
    if scalar is not None:
        return scalar
    if stripped[:1] in "([" and stripped[-1:] in ")]" and len(stripped) >= 2:
        return _sequence(stripped, text)
    return text


def _number(text: str) -> int | float | None:
    if _INT.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            return None
        value = int(text)
        # A padded number ("007") is somebody's string.
        return value if str(value) == text.lstrip("+") else None
    return float(text) if _FLOAT.fullmatch(text) else None


def _sequence(text: str, original: str) -> AttrValue:
    inner = text[1:-1].strip().rstrip(",")
    if not inner:
        return ()
    if any(bracket in inner for bracket in "()[]{}\"'"):
        return original
    items: list[AttrValue] = []
    for part in inner.split(","):
        word = part.strip().removesuffix("L")  # Python 2 wrote (3L, 3L)
        if word in _WORDS:
            items.append(_WORDS[word])
            continue
        number = _number(word)
        if number is None:
            return original
        items.append(number)
    return tuple(items)


def to_mxnet(value: AttrValue) -> str:
    """The string MXNet's parameter parser reads as ``value``."""
    if isinstance(value, tuple):
        inner = ", ".join(to_mxnet(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return value if isinstance(value, str) else str(value)


def print_attrs(attrs: Mapping[str, AttrValue]) -> str:
    """Print as ``{axis=1, act_type="relu"}`` in key order."""
    parts = []
    for key in sorted(attrs):
        printed_key = key if _IDENTIFIER.fullmatch(key) else json.dumps(key)
        parts.append(f"{printed_key}={print_value(attrs[key])}")
    return "{" + ", ".join(parts) + "}"


def print_value(value: AttrValue) -> str:
    """Print one attribute value so that :func:`parse_value` reads back the same value."""
    if isinstance(value, tuple):
        inner = ", ".join(print_value(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)


_TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([()\[\],=])|([+-]?[A-Za-z0-9_.+-]+))', re.DOTALL)


def parse_value(text: str, position: int = 0) -> tuple[AttrValue, int]:
    """Read one printed value; returns it with the position behind it.

    Raises:
        ParseError: there is no value at ``position``.
    """
    tuples: list[list[AttrValue]] = []  # those that are still open
    while True:
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(f"expected a value at {text[position : position + 20]!r}")
        position = match.end()
        if match[2] == "(":
            if len(tuples) == _MAX_DEPTH:
                raise ParseError(f"a tuple nests too deep (more than {_MAX_DEPTH} levels)")
            tuples.append([])
            continue
        value = tuple(tuples.pop()) if match[2] == ")" and tuples else _scalar(match)
        while tuples:
            tuples[-1].append(value)
            match = _TOKEN.match(text, position)
            if match is None or match[2] not in (",", ")"):
                raise ParseError("a tuple lacks its closing parenthesis")
            position = match.end()
            if match[2] == ",":
                break
            value = tuple(tuples.pop())
        else:
            return value, position


def _scalar(match: re.Match[str]) -> AttrValue:
    quoted, _, word = match.groups()
    if quoted is not None:
        return unquote(quoted)
    if word in ("True", "False", "None"):
        return _WORDS[word]
    number = None if word is None else _number(word)
    if number is None:
        shown = match[0].strip()
        raise ParseError(f"{shown[:40]!r} is no value; quote strings")
    return number


def unquote(quoted: str) -> str:
    """The text in JSON's quotes.

    Raises:
        ParseError: it holds a control character or an escape that JSON does not know.
    """
    try:
        return str(json.loads(quoted))
    except json.JSONDecodeError:
        raise ParseError(f"{quoted} is no text as JSON quotes it") from None
