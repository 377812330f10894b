"""Containers of arrays, as samples and results have them: plain ones and their next of kin."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
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
        _REMAKES[kind] = (lambda _, items: kind._make(items)) if is_named else None  # type: ignore[attr-defined]
        return _REMAKES[kind]


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


class Copied(NamedTuple):
    """A list or dict of the user's, the copy of it that a Block gets, and what that had then."""

    own: Any
    copy: Any
    items: list[Any]

    def is_written(self) -> bool:
        """Whether the copy was written since."""
        if isinstance(self.own, dict) and [*self.copy] != [*self.own]:
            return True
        items = items_of(self.copy)
        return len(items) != len(self.items) or any(map(is_not, items, self.items))

    def write_back(self, own_of: Callable[[Any], Any]) -> None:
        """Have the user's own hold what the copy does.

        Args:
            own_of: an item as the user knows it.
        """
        items = [own_of(item) for item in items_of(self.copy)]
        if isinstance(self.own, dict):
            keys = [*self.copy]
            self.own.clear()
            self.own.update(zip(keys, items, strict=True))
        else:
            self.own[:] = items
