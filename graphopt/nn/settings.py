"""What Python of Blocks reads besides arrays: values that may be others in a later call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import copy
from itertools import chain
from operator import getitem, is_
from typing import Any

from graphopt.nn.copies import Budget, Container, copies_in, has_symbols, holds, put_back
from graphopt.nn.sources import Source, sources

_SCALAR = (int, float, complex, str, bytes, type(None))


class Settings:
    """Numbers, names, flags and functions that Python of Blocks reads, as they are now.

    Asked at every call, so what is compared is looked up once.

    Attributes:
        may_draw: whether it may draw numbers, too, from the generators of Python and numpy.
    """

    def __init__(self, blocks: Iterable[Any], *, is_thorough: bool = False) -> None:
        """Note them as they are.

        Args:
            blocks: whose Python.
            is_thorough: whether it is a look before and one after, which compares more, rather than
                one in every call; of numbers, and of names of modules, that may have been set by
                others in between, those do not count that no known function sets.
        """
        self._sources, self.may_draw = sources(blocks)
        self._is_thorough = is_thorough
        self._note()

    def anew(self) -> Settings:
        """The same as they are by now."""
        found = copy(self)
        found._note()
        return found

    def are_same(self) -> bool:
        """Whether none was set otherwise, written into, added or taken away."""
        if [*map(len, self._sized)] != self._sizes:
            return not self.changed()
        try:
            are_objects = all(map(is_, map(getitem, self._owns, self._names), self._objects))
            if not are_objects and not self._are_equal():
                return not self.changed()
        except LookupError:
            return not self.changed()
        return all(part.holds(part.value) for part in self._others) or not self.changed()

    def _are_equal(self) -> bool:
        """Whether those that are other objects are equal numbers or texts, which are kept."""
        for at, (own, name) in enumerate(zip(self._owns, self._names, strict=True)):
            now, known = own[name], self._objects[at]
            if now is not known:
                if not isinstance(now, _SCALAR) or not holds(known, now):
                    return False
                self._objects[at] = now
        return True

    def changed(self) -> list[str]:
        """Those that are others by now, as ``'name' of Class``."""
        found = [source.describe(name) for source, name in self._unlike()]
        if not found:
            self._note()  # they are other objects, or something else was added
        return found

    def with_symbols(self) -> list[str]:
        """Those into which a Symbol came."""
        return [s.describe(name) for s, name in self._unlike() if has_symbols(s.own.get(name))]

    def restore(self) -> None:
        """Set them as they were."""
        known = dict(zip(map(id, self._sources), self._known, strict=True))
        for source, name in list(self._unlike()):
            with suppress(Exception):  # of setters of the user's
                if name in known[id(source)]:
                    source.set(name, put_back(known[id(source)][name]))
                else:
                    source.drop(name)

    def _unlike(self) -> Iterator[tuple[Source, str]]:
        for source, known in zip(self._sources, self._known, strict=True):
            now = source.own
            for name in sorted(known.keys() | source.names_now(arrays=self._is_thorough)):
                if name in known and name in now and holds(known[name], now[name]):
                    continue
                is_others = self._is_thorough and not source.is_writer(name)
                if is_others and isinstance(now.get(name), _SCALAR):
                    continue
                yield source, name

    def _note(self) -> None:
        budget = Budget.thorough() if self._is_thorough else Budget()
        self._known = [source.values(budget) for source in self._sources]
        self._sized = [source.own for source in self._sources if source.is_whole]
        slots = [
            (source.own, name)
            for source, known in zip(self._sources, self._known, strict=True)
            for name in known
        ]
        self._others = []
        for value in chain.from_iterable(known.values() for known in self._known):
            for part in copies_in(value):
                if isinstance(part, Container) and part.has_slots:
                    self._sized += [] if isinstance(part.own, tuple) else [part.own]
                    slots += part.slots()
                else:
                    self._others.append(part)
        # In lists of their own, which C goes through: most are the objects that they were.
        self._sizes = [*map(len, self._sized)]
        self._owns, self._names = [own for own, _ in slots], [name for _, name in slots]
        self._objects = [own[name] for own, name in slots]


def settings_read(block: Any, *, is_thorough: bool = False) -> Settings:
    """What MXNet reads in every call.

    What hybridized Blocks hold is theirs for good, there as well.
    """
    return Settings(not_hybridized(block), is_thorough=is_thorough)


def settings_if_known(block: Any) -> Settings | None:
    """:func:`settings_read`; ``None`` if objects of the user's cannot be looked at.

    Tracing meets that, too, and says so.
    """
    with suppress(Exception):
        return settings_read(block)
    return None


def not_hybridized(block: Any) -> Iterator[Any]:
    """A Block and all in it, each once, but those that MXNet runs as graphs and what is in them."""
    seen: set[int] = set()
    stack = [block]
    while stack:
        part = stack.pop()
        if id(part) in seen or getattr(part, "_active", False):
            continue
        seen.add(id(part))
        yield part
        stack.extend(part._children.values())
