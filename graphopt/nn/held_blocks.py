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
        """``swapped`` is a copy of ``own`` whose items are swapped.

        Args:
            own: the user's.
            swapped: the twin's.
            swap: for items of the user's.
            swap_back: for items of the twin's.
            within: finds lists and the like of this kind among the user's items.
        """
        self.own, self.swapped = own, swapped
        self._swap, self._swap_back, self._find = swap, swap_back, within
        self._note()

    def settle(self, settled: set[int] | None = None) -> None:
        """Have both hold the same, if either was written to since; the copy wins over the other.

        So do those within, but for the ``settled`` ones: some may hold each other.
        """
        settled = set() if settled is None else settled
        if id(self) in settled:
            return
        settled.add(id(self))
        if differ(self._copied, items_of(self.swapped)):
            fill(self.own, swapped(items_of(self.swapped), self._own_item))
            self._note()
        elif differ(self._known, items_of(self.own)):
            fill(self.swapped, swapped(items_of(self.own), self._swap))
            self._note()
        for held in self._within:
            held.settle(settled)

    def _own_item(self, item: Any) -> Any:
        """A tuple that the twin's code left is the user's own."""
        known = self._owns.get(id(item), _MISSING)
        return self._swap_back(item) if known is _MISSING else known

    def _note(self) -> None:
        self._known, self._copied = items_of(self.own), items_of(self.swapped)
        pairs = () if isinstance(self.own, set) else zip(self._known, self._copied, strict=True)
        self._owns = {id(copy): own for (_, own), (_, copy) in pairs}
        self._within = self._find(value for _, value in self._known)


def is_container(value: Any) -> bool:
    """Whether it can be written into and is no subclass, which may do what it likes."""
    return type(value) in _DICTS or type(value) in _OTHERS


def items_of(container: Any) -> list[tuple[Any, Any]]:
    """Keys or numbers, and values."""
    return list(container.items() if isinstance(container, dict) else enumerate(container))


def swapped(items: Iterable[tuple[Any, Any]], swap: Swap) -> list[tuple[Any, Any]]:
    """Keys and values, which may both be Blocks."""
    return [(swap(key), swap(value)) for key, value in items]


def differ(before: Iterable[tuple[Any, Any]], now: Iterable[tuple[Any, Any]]) -> bool:
    """Whether they are other objects under the same keys, or the keys are others."""
    nothing = (_MISSING, _MISSING)
    return any(
        one[1] is not other[1] or (one[0] is not other[0] and one[0] != other[0])
        for one, other in zip_longest(before, now, fillvalue=nothing)
    )


def fill(container: Any, items: list[tuple[Any, Any]]) -> None:
    """Have it hold these and nothing else."""
    if isinstance(container, dict):
        container.clear()
        container.update(items)
    elif isinstance(container, list):
        container[:] = [value for _, value in items]
    else:
        container.clear()
        add = container.update if isinstance(container, set) else container.extend
        add(value for _, value in items)
