"""Swapping Blocks in lists, dicts, tuples and the like, which may be deep and hold each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from graphopt.nn.held_blocks import Swap, differ, fill, is_container, items_of
from graphopt.nn.users import SCALARS

#: Blocks are looked for among so many items.
_MOST: Final = 4096


class Walk:
    """Through what a list or the like holds, each once and without recursion.

    Attributes:
        made: lists and the like that hold what is swapped, each with what stands for it.
    """

    def __init__(self, known: Swap, stand_in: Callable[[Any], Any]) -> None:
        """What is swapped.

        Args:
            known: swaps what is known, and returns all else.
            stand_in: of a list or the like what will have its items swapped, maybe itself.
        """
        self._known, self._stand_in = known, stand_in
        self._items: dict[int, list[tuple[Any, Any]]] = {}
        self._parts: dict[int, Any] = {}  # what has these items
        self._found: dict[int, Any] = {}  # what stands for those in which something is swapped
        self.made: list[tuple[Any, Any]] = []

    def swapped(self, value: Any) -> Any:
        """What stands for a value; itself if there is nothing to swap in it."""
        found = self._known(value)
        if found is not value or not _has_items(value):
            return found
        changed = self._look(value)
        if not changed:
            return value
        changed += self._empty_in(changed)
        # Lists come first: tuples hold them, and they may hold each other.
        self.made = [(p, self._stand_in(p)) for p in changed if is_container(p)]
        self._found = {id(part): made for part, made in self.made}
        needed = {id(part) for part in changed}
        for part in changed:
            if id(part) not in self._found:
                self._make_fixed(part, needed)
        for part, made in self.made:
            fill(made, self._swapped_items(part))
        return self._found[id(value)]

    def _look(self, value: Any) -> list[Any]:
        """Which of those in a value hold what is swapped, also within others."""
        holders: dict[int, list[int]] = {}
        changed: list[int] = []
        left, todo = _MOST, deque([value])
        while todo:
            part = todo.popleft()
            if id(part) in self._parts:
                continue
            self._parts[id(part)], self._items[id(part)] = part, []
            left -= len(part)
            if left < 0 or _is_of_scalars(part):
                continue
            items = self._items[id(part)] = items_of(part)
            for item in chain.from_iterable(items):
                if self._known(item) is not item:
                    changed.append(id(part))
                elif _has_items(item):
                    holders.setdefault(id(item), []).append(id(part))
                    todo.append(item)
        known: dict[int, Any] = {}
        while changed:
            key = changed.pop()
            if key not in known:
                known[key] = self._parts[key]
                changed += holders.get(key, ())
        return list(known.values())

    def _empty_in(self, changed: list[Any]) -> list[Any]:
        """Those beside Blocks are likely to get some."""
        items = chain.from_iterable(chain.from_iterable(map(self._items_in, changed)))
        found = {id(i): i for i in items if is_container(i) and not i and self._known(i) is i}
        return list(found.values())

    def _items_in(self, part: Any) -> list[tuple[Any, Any]]:
        return self._items[id(part)]

    def _make_fixed(self, value: Any, needed: set[int]) -> None:
        """Tuples are made of others that are made before."""
        todo = [value]
        while todo:
            part = todo[-1]
            items = chain.from_iterable(self._items[id(part)])
            first = [i for i in items if id(i) in needed and id(i) not in self._found]
            if id(part) in self._found or not first:
                todo.pop()
                if id(part) not in self._found:
                    self._found[id(part)] = _made_of(part, self._swapped_items(part))
            else:
                todo += first

    def _swapped_items(self, part: Any) -> list[tuple[Any, Any]]:
        return [(self._swapped(k), self._swapped(v)) for k, v in self._items[id(part)]]

    def _swapped(self, item: Any) -> Any:
        return self._found[id(item)] if id(item) in self._found else self._known(item)


def _has_items(value: Any) -> bool:
    return is_container(value) or _is_fixed(value)


def _is_of_scalars(value: Any) -> bool:
    parts = chain(value, value.values()) if isinstance(value, dict) else value
    return SCALARS.issuperset(map(type, parts))


def _is_fixed(value: Any) -> bool:
    """Whether it has items and cannot be written into; named tuples are such."""
    is_named = (
        isinstance(value, tuple) and hasattr(value, "_make") and not hasattr(value, "__dict__")
    )
    return is_named or type(value) in (tuple, frozenset)


def _made_of(fixed: Any, items: list[tuple[Any, Any]]) -> Any:
    if not differ(items_of(fixed), items):
        return fixed
    kind = type(fixed)
    return getattr(kind, "_make", kind)(value for _, value in items)
