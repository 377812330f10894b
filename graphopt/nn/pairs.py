"""The user's objects and what stands for them in twins: Blocks, and what holds Blocks."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from types import MethodType
from typing import Any, Protocol
from weakref import WeakValueDictionary, finalize

from graphopt.nn.held_blocks import Held, is_container, settle
from graphopt.nn.users import SCALARS
from graphopt.nn.walks import Walk


class Waiting(Protocol):
    """What may be filled until the code of twins ends."""

    own: Any

    def settle(self, cls: type) -> None:
        """The code of a twin of that class ended."""


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
        self._waiting: dict[Waiting, type] = {}

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
        walk = Walk(self._known_twin, copy)
        found = walk.swapped(own)
        self._pair(walk.made)
        return found

    def read(self, own: Any) -> Any:
        """What code of a twin reads in a slot: :meth:`twin`, the same as it is."""
        found = self.twin(own)
        self.look(self.held_in([own]))
        if is_container(own) and not own:
            self._given[id(own)] = own
        return found

    def given(self, own: Any) -> Any:
        """What code of a twin is given as an argument, which it may write into."""
        found = self.read(own)
        if found is own and (is_container(own) or isinstance(own, tuple)):
            self._given[id(own)] = own
        return found

    def own(self, twin: Any) -> Any:
        """What the user is given: nothing that stands for something else.

        Lists and the like that hold such are written into, as code may go on with them.
        """
        if type(twin) in SCALARS:
            return twin
        if is_container(twin) and id(twin) not in self._own:
            self._given[id(twin)] = twin
        return Walk(self._known_own, _itself).swapped(twin)

    def kept(self, twin: Any) -> Any:
        """What the user's Blocks and lists keep; code of twins goes on with what it has.

        Lists and the like that hold what stands for something else are copied, unless they are
        the user's.
        """
        if type(twin) in SCALARS:
            return twin
        walk = Walk(self._known_own, lambda made: made if id(made) in self._given else copy(made))
        found = walk.swapped(twin)
        self._pair((own, made) for made, own in walk.made if own is not made)
        if is_container(twin) and found is twin:
            self._given[id(twin)] = twin
        return found

    def held_in(self, values: Iterable[Any]) -> list[Held]:
        """Lists and the like of the user's that twins have copies of, also within tuples."""
        found, seen, left = [], set(), list(values)
        while left:
            value = left.pop()
            held = self._held.get(id(value))
            if held is not None:
                found.append(held)
            elif isinstance(value, tuple) and id(value) not in seen:
                seen.add(id(value))
                left += value
        return found

    def look(self, found: Iterable[Held]) -> None:
        """Code of a twin is given some, to read and to write into."""
        settle(found)
        self._looked.update(found)

    def wait(self, empty: Waiting, cls: type) -> None:
        """Code of a twin of that class reads what is empty, and may fill it."""
        self._waiting[empty] = cls

    def awaits(self, own: Any) -> bool:
        """Whether code of some twin may be filling one of the user's, that has another as well."""
        return any(empty.own is own for empty in list(self._waiting))

    def settle(self) -> None:
        """Have the user's hold what code of twins wrote into lists and the like.

        It may have gone on with those that it gave the user.
        """
        looked = list(self._looked)  # other threads may add some
        self._looked.difference_update(looked)
        settle(looked)
        for empty in list(self._waiting):
            cls = self._waiting.pop(empty, None)
            if cls is not None:
                empty.settle(cls)
        for key in list(self._given):
            self._settle_given(self._given.pop(key, None))

    def _settle_given(self, value: Any) -> None:
        Walk(self._known_own, _itself).swapped(value)

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

    def _pair(self, made: Iterable[tuple[Any, Any]]) -> None:
        """Lists and the like of the user's, which may hold each other, and twins' copies."""
        found = []
        for own, twin in made:
            self.add(own, twin)
            held = Held(own, twin, self.twin, self.kept, self.held_in)
            self._held[id(own)] = held
            finalize(held, self._forget, id(own), id(twin)).atexit = False
            found.append(held)
        for held in found:
            held.note()
        self._looked.update(found)

    def _forget(self, own: int, made: int) -> None:
        del self._twins[own], self._own[made]


def _itself(container: Any) -> Any:
    return container
