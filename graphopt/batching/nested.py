"""Containers of arrays, as samples and results have them: plain ones and their next of kin."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import is_not
from typing import Any, NamedTuple

#: From a container of the kind and new items to another container of the kind.
_Remake = Callable[[Any, Iterable[Any]], Any]

_REMAKES: dict[type, _Remake | None] = {
    tuple: lambda _, items: tuple(items),
    list: lambda _, items: list(items),
    dict: lambda like, items: dict(zip(like, items, strict=True)),
    OrderedDict: lambda like, items: OrderedDict(zip(like, items, strict=True)),
}


def remake_of(kind: type) -> _Remake | None:
    """How containers of this kind are made; None if it is no kind of container.

    Tuples, lists, dicts, OrderedDicts, and tuples with names of their own.
    """
    try:
        return _REMAKES[kind]
    except KeyError:
        is_named = issubclass(kind, tuple) and hasattr(kind, "_make")
        _REMAKES[kind] = _named if is_named else None
        return _REMAKES[kind]


def _named(like: Any, items: Iterable[Any]) -> Any:
    made = type(like)._make(items)
    if hasattr(like, "__dict__"):  # a subclass with attributes of its own
        made.__dict__.update(like.__dict__)
    return made


def items_of(nested: Any) -> Collection[Any]:
    """What a container has: of a dict the values."""
    found: Collection[Any] = nested.values() if isinstance(nested, dict) else nested
    return found


def are_laid_out_alike(containers: Collection[Any]) -> bool:
    """Whether containers, at least one, have one kind and one length, and dicts the same keys."""
    first = next(iter(containers))
    kind = type(first)
    if isinstance(first, dict):
        return all(type(each) is kind and each.keys() == first.keys() for each in containers)
    return all(type(each) is kind and len(each) == len(first) for each in containers)


def converted(nested: Any, convert: Callable[[Any], Any], known: dict[int, Any]) -> Any:
    """What is nested, with something else for what is no container; lists and dicts are written.

    Args:
        nested: anything.
        convert: makes an item of another.
        known: what containers became, by id, with them where they stay; taken for granted.
    """
    remake = remake_of(type(nested))
    if remake is None:
        return convert(nested)
    if id(nested) in known:
        return known[id(nested)]
    is_tuple = isinstance(nested, tuple)
    if not is_tuple:
        known[id(nested)] = nested  # what it holds may lead back to it
    items = [converted(item, convert, known) for item in items_of(nested)]
    if any(map(is_not, items, items_of(nested))):
        if is_tuple:
            return remake(nested, items)
        put(nested, items)
    return nested


def put(container: Any, items: Sequence[Any]) -> None:
    """Have a list, or a dict under its keys, hold these items."""
    if isinstance(container, dict):
        container.update(zip([*container], items, strict=True))
    else:
        container[:] = items


class Copied(NamedTuple):
    """A list or dict of the user's, the copy of it that a Block gets, and what that had then."""

    own: Any
    copy: Any
    items: list[Any]
    keys: list[Any]

    def is_written(self) -> bool:
        """Whether the copy was written since."""
        if isinstance(self.copy, dict) and [*self.copy] != self.keys:
            return True
        items = items_of(self.copy)
        return len(items) != len(self.items) or any(map(is_not, items, self.items))

    def write_back(self, items: Sequence[Any]) -> None:
        """Have the user's own hold these items, and of a dict the keys of the copy."""
        if isinstance(self.own, dict) and self.own is not self.copy:
            keys = [*self.copy]
            self.own.clear()
            self.own.update(dict.fromkeys(keys))
        put(self.own, items)
