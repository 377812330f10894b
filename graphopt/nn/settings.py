"""What Python of Blocks reads besides arrays: values that may be others in a later call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import getitem, is_
from typing import Any

from graphopt.errors import UnsupportedError
from graphopt.frontend.gluon import Traced, describe, trace
from graphopt.nn.copies import Container, copies_in, holds, put_back
from graphopt.nn.initializing import PythonFirst
from graphopt.nn.sources import Source, sources


class Settings:
    """Numbers, names, flags and functions that Python of Blocks reads, as they are now.

    Asked at every call, so what is compared is looked up once.
    """

    def __init__(self, blocks: Iterable[Any]) -> None:
        """Note them as they are."""
        self._sources = sources(blocks)
        self._note()

    def are_same(self) -> bool:
        """Whether none was set otherwise, written into, added or taken away."""
        if [*map(len, self._sized)] != self._sizes:
            return not self.changed()
        try:
            if not all(map(is_, map(getitem, self._owns, self._names), self._objects)):
                return not self.changed()
        except LookupError:
            return not self.changed()
        return all(part.holds(part.value) for part in self._others) or not self.changed()

    def changed(self) -> list[str]:
        """Those that are others by now, as ``'name' of Class``."""
        found = [
            source.describe(name)
            for source, known in zip(self._sources, self._known, strict=True)
            for name in sorted(_unlike(known, source))
        ]
        if not found:
            self._note()  # they are other objects, or something else was added
        return found

    def restore(self) -> None:
        """Set them as they were."""
        for source, known in zip(self._sources, self._known, strict=True):
            for name in _unlike(known, source):
                if name in known:
                    source.set(name, put_back(known[name]))
                else:
                    source.drop(name)

    def _note(self) -> None:
        self._known = [source.values() for source in self._sources]
        self._sized = [source.own for source in self._sources if source.names is None]
        slots = [
            (source.own, name)
            for source, known in zip(self._sources, self._known, strict=True)
            for name in known
        ]
        self._others = []
        for copy in chain.from_iterable(known.values() for known in self._known):
            for part in copies_in(copy):
                if isinstance(part, Container) and part.has_slots:
                    self._sized += [] if isinstance(part.own, tuple) else [part.own]
                    slots += part.slots()
                else:
                    self._others.append(part)
        # In lists of their own, which C goes through: most are the objects that they were.
        self._sizes = [*map(len, self._sized)]
        self._owns, self._names = [own for own, _ in slots], [name for _, name in slots]
        self._objects = [own[name] for own, name in slots]


def settings_read(block: Any) -> Settings:
    """What MXNet reads in every call.

    What hybridized Blocks hold is theirs for good, there as well.
    """
    return Settings(_not_hybridized(block))


def steadily_traced(block: Any, args: Sequence[Any], *, may_run: bool = False) -> Traced:
    """The Block's Symbol; what its Python does once may be done.

    Args:
        block: any HybridBlock.
        args: arrays, or lists of arrays.
        may_run: whether its Python may make this call instead.

    Raises:
        UnsupportedError: it cannot be traced, or sets something in every call.
        PythonFirst: it does something once, in this call, and nothing of it is done yet.
    """
    before = settings_read(block)
    traced = trace(block, args)
    if not before.changed():
        return traced
    then = settings_read(block)
    again = trace(block, args)
    if names := then.changed():
        before.restore()
        raise UnsupportedError(f"{describe(block)} sets {names[0]} in every call")
    if may_run and not traced.is_like(again):
        before.restore()
        raise PythonFirst
    return again


@contextmanager
def undone(block: Any) -> Iterator[None]:
    """What Python of a Block sets within is set as before."""
    before = settings_read(block)
    try:
        yield
    finally:
        before.restore()


def _unlike(known: Mapping[str, Any], source: Source) -> set[str]:
    """Names whose values are others."""
    now = source.own
    names = known.keys() | source.names_now()
    return {n for n in names if n not in known or n not in now or not holds(known[n], now[n])}


def _not_hybridized(block: Any) -> Iterator[Any]:
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
