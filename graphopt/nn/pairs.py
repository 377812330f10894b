"""The user's objects and what stands for them in twins: Blocks, and what holds Blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from itertools import chain
from types import MethodType
from typing import Any, Final
from weakref import WeakValueDictionary, finalize

from graphopt.nn.held_blocks import Held, Swap, differ, fill, is_container, items_of
from graphopt.nn.users import SCALARS

#: Blocks are looked for so deep in lists within lists, and among so many items.
_DEEPEST: Final = 32
_MOST: Final = 4096


class Pairs:
    """Objects of the user's, each with what code of twins is given in its place.

    All are held, as they are known by their ids: Blocks for good, lists and the like as long as an
    attribute, another list or a call in progress has them, and tuples not at all.
    """

    def __init__(self) -> None:
        """None are known yet."""
        self._twins: dict[int, Any] = {}
        self._own: dict[int, Any] = {}
        self._held: WeakValueDictionary[int, Held] = WeakValueDictionary()
        self._looked: set[Held] = set()
        self._given: dict[int, Any] = {}

    def add(self, own: Any, twin: Any) -> None:
        """One stands for the other, which may be itself."""
        self._twins[id(own)], self._own[id(twin)] = twin, own

    def add_methods(self, own: Any, twin: Any) -> None:
        """A twin's are those that are bound to the user's Block, or to a view of it.

        Views share their ``__dict__`` with it.
        """
        self._twins[id(vars(own))] = twin

    def knows(self, own: Any) -> bool:
        """Whether something stands for one of the user's."""
        return id(own) in self._twins

    def twin(self, own: Any) -> Any:
        """What stands for a Block of the user's, a method of it, or what holds some."""
        return _Walk(self._known_twin, self._copied).swapped(own)

    def given(self, own: Any) -> Any:
        """What code of a twin is given as it reads something: :meth:`twin`, the same as it is."""
        found = self.twin(own)
        self.look(self.held_in([own]))
        return found

    def own(self, twin: Any) -> Any:
        """What the user is given: nothing that stands for something else.

        Lists and the like that hold such are written into, as code may go on with them.
        """
        if type(twin) in SCALARS:
            return twin
        if is_container(twin) and id(twin) not in self._own:
            self._given[id(twin)] = twin
        return _Walk(self._known_own, _filled).swapped(twin)

    def held_in(self, values: Iterable[Any]) -> list[Held]:
        """Lists and the like of the user's that twins have copies of, also within tuples."""
        found = []
        for value in values:
            held = self._held.get(id(value))
            if held is not None:
                found.append(held)
            elif isinstance(value, tuple):
                found += self.held_in(value)
        return found

    def look(self, found: Iterable[Held]) -> None:
        """Code of a twin is given some, to read and to write into."""
        for held in found:
            held.settle()
            self._looked.add(held)

    def settle(self) -> None:
        """Have the user's hold what code of twins wrote into lists and the like.

        It may have gone on with those that it gave the user.
        """
        for held in list(self._looked):  # other threads may add some
            self._looked.discard(held)
            held.settle()
        for key in list(self._given):
            _Walk(self._known_own, _filled).swapped(self._given.pop(key, None))

    def _known_twin(self, own: Any) -> Any:
        if isinstance(own, MethodType):
            owner = self._twins.get(id(getattr(own.__self__, "__dict__", None)))
            return own if owner is None else MethodType(own.__func__, owner)
        return self._twins.get(id(own), own)

    def _known_own(self, twin: Any) -> Any:
        if isinstance(twin, MethodType):
            owner = self._own.get(id(twin.__self__))
            return twin if owner is None else MethodType(twin.__func__, owner)
        return self._own.get(id(twin), twin)

    def _copied(self, own: Any, items: list[tuple[Any, Any]]) -> Any:
        if not is_container(own):
            return _made_of(own, items)
        made = copy(own)
        fill(made, items)
        self.add(own, made)
        held = Held(own, made, self.twin, self.own, self.held_in)
        self._held[id(own)] = held
        self._looked.add(held)
        finalize(held, self._forget, id(own), id(made)).atexit = False
        return made

    def _forget(self, own: int, made: int) -> None:
        del self._twins[own], self._own[made]


class _Walk:
    """Through what a list or the like holds, which may hold itself, once."""

    def __init__(self, known: Swap, made: Callable[[Any, list[tuple[Any, Any]]], Any]) -> None:
        """What is swapped.

        Args:
            known: swaps what is known, and returns all else.
            made: what stands for a list or the like whose items are others.
        """
        self._known, self._made = known, made
        self._left = _MOST
        self._seen: dict[int, Any] = {}  # what stands for it, or itself as long as that is made

    def swapped(self, value: Any, depth: int = 0) -> Any:
        found = self._known(value)
        if found is not value or not (is_container(value) or _is_fixed(value)):
            return found
        if id(value) in self._seen:
            return self._seen[id(value)]
        self._left -= len(value)
        if self._left < 0 or depth == _DEEPEST:
            return value
        parts = chain(value, value.values()) if isinstance(value, dict) else value
        if SCALARS.issuperset(map(type, parts)):
            return value
        self._seen[id(value)] = value
        before = items_of(value)
        now = [(self.swapped(k, depth + 1), self.swapped(v, depth + 1)) for k, v in before]
        if differ(before, now):
            self._seen[id(value)] = self._made(value, now)
        return self._seen[id(value)]


def _filled(container: Any, items: list[tuple[Any, Any]]) -> Any:
    if not is_container(container):
        return _made_of(container, items)
    fill(container, items)
    return container


def _is_fixed(value: Any) -> bool:
    """Whether it has items and cannot be written into; named tuples are such."""
    is_named = (
        isinstance(value, tuple) and hasattr(value, "_make") and not hasattr(value, "__dict__")
    )
    return is_named or type(value) in (tuple, frozenset)


def _made_of(fixed: Any, items: list[tuple[Any, Any]]) -> Any:
    kind = type(fixed)
    return getattr(kind, "_make", kind)(value for _, value in items)
