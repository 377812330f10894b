"""Kinds of containers: MXNet's layouts take all of them for lists, as calls of its graphs do."""

from __future__ import annotations

from typing import Any

#: Of nested arrays: the type of a container and the kinds of what is in it. ``None`` stands for an
#: array, and for lists of such.
Kinds = Any


def kinds_of(nested: Any) -> Kinds:
    """Which containers are no lists, of nested lists and tuples.

    Raises:
        TypeError: one is of a class that may hold more than its items.
    """
    if not isinstance(nested, (list, tuple)):
        return None
    kind = type(nested)
    if kind not in (list, tuple) and not _is_named(nested):
        raise TypeError(f"only lists and tuples can be made anew, and {kind.__name__} is another")
    parts = tuple(map(kinds_of, nested))
    inner = parts if any(parts) else None
    return None if kind is list and inner is None else (kind, inner)


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
