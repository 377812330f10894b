"""Lists, dicts and the like that hold Blocks, as a twin sees them: with optimized ones in place."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any, Final

#: Replaces a Block, or what holds some.
Swap = Callable[[Any], Any]

_DICTS: Final = (dict, OrderedDict, defaultdict)
_OTHERS: Final = (list, set, deque)
_MISSING: Final = object()


class Held:
    """A list or the like of the user's that holds Blocks, and the twin's copy of it.

    What the twin's code writes into the copy is written into the user's, and the other way round,
    when either is looked at next.
    """

    def __init__(
        self,
        own: Any,
        swapped: Any,
        swap: Swap,
        swap_back: Swap,
        within: Callable[[Iterable[Any]], list[Held]],
    ) -> None:
        """``swapped`` is a copy of ``own`` whose items are swapped; :meth:`note` has to follow.

        Args:
            own: the user's.
            swapped: the twin's.
            swap: for items of the user's.
            swap_back: for items of the twin's.
            within: finds lists and the like of this kind among the user's items.
        """
        self.own, self.swapped = own, swapped
        self._swap, self._swap_back, self._find = swap, swap_back, within

    def settle(self) -> list[Held]:
        """Have both hold the same, if either was written to since; the copy wins over the other.

        Returns:
            Those within.
        """
        if differ(self._copied, items_of(self.swapped)):
            fill(self.own, swapped(items_of(self.swapped), self._own_item))
            self.note()
        elif differ(self._known, items_of(self.own)):
            fill(self.swapped, swapped(items_of(self.own), self._swap))
            self.note()
        return self._within

    def _own_item(self, item: Any) -> Any:
        """A tuple that the twin's code left is the user's own."""
        known = self._owns.get(id(item), _MISSING)
        return self._swap_back(item) if known is _MISSING else known

    def note(self) -> None:
        """Both hold the same, and those within are known."""
        self._known, self._copied = items_of(self.own), items_of(self.swapped)
        pairs = () if isinstance(self.own, set) else zip(self._known, self._copied, strict=True)
        self._owns = {id(copy): own for (_, own), (_, copy) in pairs}
        self._within = self._find(value for _, value in self._known)


def settle(found: Iterable[Held]) -> None:
    """Settle some and all within them, which may hold each other."""
    todo, settled = list(found), set()
    while todo:
        held = todo.pop()
        if id(held) not in settled:
            settled.add(id(held))
            todo += held.settle()


def is_container(value: Any) -> bool:
    """Whether it can be written into and is no subclass, which may do what it likes."""
    return type(value) in _DICTS or type(value) in _OTHERS


def items_of(container: Any) -> list[tuple[Any, Any]]:
    """Keys and values; what has no keys has ``None`` for each."""
    if isinstance(container, dict):
        return list(container.items())
    return [(None, value) for value in container]


def swapped(items: Iterable[tuple[Any, Any]], swap: Swap) -> list[tuple[Any, Any]]:
    """Keys and values, which may both be Blocks."""
    return [(swap(key), swap(value)) for key, value in items]


def differ(before: Iterable[tuple[Any, Any]], now: Iterable[tuple[Any, Any]]) -> bool:
    """Whether keys or values are other objects; arrays may be neither equal nor unlike."""
    nothing = (_MISSING, _MISSING)
    return any(
        one[0] is not other[0] or one[1] is not other[1]
        for one, other in zip_longest(before, now, fillvalue=nothing)
    )


def fill(container: Any, items: list[tuple[Any, Any]]) -> None:
    """Have it hold these and nothing else.

    The user may be going through it, which Python allows as long as only values are replaced.
    """
    before = items_of(container)
    if not differ(before, items):
        return
    if isinstance(container, list):
        container[:] = [value for _, value in items]
    elif not isinstance(container, set) and _have_same_keys(before, items):
        for at, ((key, old), (_, value)) in enumerate(zip(before, items, strict=True)):
            if value is not old:
                container[key if isinstance(container, dict) else at] = value
    else:
        container.clear()
        if isinstance(container, (dict, set)):
            container.update(items if isinstance(container, dict) else [v for _, v in items])
        else:
            container.extend(value for _, value in items)


def _have_same_keys(before: list[tuple[Any, Any]], now: list[tuple[Any, Any]]) -> bool:
    return len(before) == len(now) and all(
        one[0] is other[0] for one, other in zip(before, now, strict=True)
    )
