"""Kinds of containers: MXNet's layouts take all of them for lists, as calls of its graphs do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.errors import UnsupportedError
from graphopt.frontend.blocks import describe
from graphopt.frontend.composing import is_graph

#: Of nested arrays: the type of a container and the kinds of what is in it. ``None`` stands for an
#: array, and for lists of such.
Kinds = Any


def kinds_of(nested: Any) -> Kinds:
    """Which containers are no lists, of nested lists and tuples.

    Raises:
        TypeError: one is of a class that may hold more than its items.
    """
    kind = type(nested)
    if kind is not list and kind is not tuple:
        if not issubclass(kind, (list, tuple)):
            return None
        if not _is_named(nested):
            raise TypeError(f"only lists and tuples can be made anew, not {kind.__name__}")
    parts = tuple([kinds_of(part) for part in nested])
    inner = parts if any(parts) else None
    return None if kind is list and inner is None else (kind, inner)


def kinds_given(block: Any, args: Sequence[Any]) -> Kinds:
    """Which arguments of a call are no lists, as far as the Block's Python is to see it.

    Raises:
        UnsupportedError: one is of a class that may hold more than its items.
    """
    try:
        kinds = kinds_of([*args])
    except TypeError as error:
        if is_graph(block):
            return None
        raise UnsupportedError(f"{describe(block)} cannot be traced: {error}") from None
    return None if kinds is None or is_graph(block) else kinds


def in_kinds(lists: Any, kinds: Kinds) -> Any:
    """Nested lists, with containers of those kinds in their place."""
    if kinds is None:
        return lists
    kind, inner = kinds
    items = lists if inner is None else map(in_kinds, lists, inner)
    return getattr(kind, "_make", kind)(items)


def _is_named(nested: Any) -> bool:
    """Whether it is a tuple with names, without attributes beside these."""
    return hasattr(nested, "_make") and not getattr(nested, "__dict__", None)
