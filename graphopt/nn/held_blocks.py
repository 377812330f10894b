"""Lists and dicts that hold Blocks, as a twin sees them: with optimized ones in their place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

#: Replaces a Block, or what holds some.
Swap = Callable[[Any], Any]

_MISSING = object()


class Held:
    """A list or dict of the user's Block that holds Blocks, and the twin's copy of it.

    What the twin's code writes into the copy is written into the user's, and the other way round,
    when either is looked at next.
    """

    def __init__(self, own: Any, swapped: Any, swap: Swap) -> None:
        """``swapped`` is a copy of ``own`` whose items are swapped."""
        self.own, self.swapped, self._swap = own, swapped, swap
        self._note()

    def current(self) -> Any:
        """The copy, once it is what the user's is."""
        self.settle()
        return self.swapped

    def settle(self) -> None:
        """Have both hold the same, if either was written to since; the copy wins over the other."""
        if _differ(self._copied, _items(self.swapped)):
            pairs = zip(self._copied, self._known, strict=True)
            users = {id(copy): own for (_, copy), (_, own) in pairs}
            _fill(self.own, [(k, users.get(id(v), v)) for k, v in _items(self.swapped)])
        elif _differ(self._known, _items(self.own)):
            _fill(self.swapped, [(key, self._swap(value)) for key, value in _items(self.own)])
        else:
            return
        self._note()

    def _note(self) -> None:
        self._known, self._copied = _items(self.own), _items(self.swapped)


def is_container(value: Any) -> bool:
    """Whether it is a list or dict and no subclass, which may do what it likes."""
    return type(value) in (list, dict, OrderedDict)


def settle(twin: Any) -> None:
    """Have the user's Block see what the code of its twin has written into lists and dicts."""
    for held in getattr(type(twin), "_graphopt_held", ()):
        held.settle()


def _items(container: Any) -> list[tuple[Any, Any]]:
    if isinstance(container, list):
        return list(enumerate(container))
    return list(container.items())


def _differ(before: Iterable[tuple[Any, Any]], now: Iterable[tuple[Any, Any]]) -> bool:
    nothing = (_MISSING, _MISSING)
    return any(
        one[1] is not other[1] or one[0] != other[0]
        for one, other in zip_longest(before, now, fillvalue=nothing)
    )


def _fill(container: Any, items: list[tuple[Any, Any]]) -> None:
    if isinstance(container, list):
        container[:] = [value for _, value in items]
        return
    container.clear()
    container.update(items)
