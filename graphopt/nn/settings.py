"""What Python of Blocks reads besides arrays: values that may be others in a later call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.frontend.gluon import Traced, describe, trace
from graphopt.nn.copies import are_alike, put_back
from graphopt.nn.sources import sources

_ABSENT: Final = object()


class Settings:
    """Numbers, names, flags and functions that Python of Blocks reads, as they are now.

    MXNet reads them in every call of a Block that is not hybridized; what hybridized ones hold is
    theirs for good, there as well. Asked at every call, so what is compared is looked up once.
    """

    def __init__(self, block: Any) -> None:
        """Note them as they are."""
        self._sources = sources(_not_hybridized(block))
        self._known = [source.values() for source in self._sources]
        self._sizes: list[tuple[Mapping[str, Any], int]] = []
        self._parts: list[tuple[Callable[[Any], Any], Mapping[str, Any], Any]] = []
        self._note()

    def are_same(self) -> bool:
        """Whether none was set otherwise, added or taken away."""
        try:
            for own, count in self._sizes:
                if len(own) != count:
                    return not self.changed()
            for read, own, known in self._parts:
                if known != read(own):  # `Held` comes first
                    return not self.changed()
        except (KeyError, ValueError, import_mxnet().MXNetError):  # arrays cannot be compared
            return not self.changed()
        return True

    def changed(self) -> list[str]:
        """Those that are others by now, as ``'name' of Class``."""
        found = [
            source.describe(name)
            for source, known in zip(self._sources, self._known, strict=True)
            for name in sorted(_unlike(known, source.values()))
        ]
        if not found:
            self._note()  # something else was added
        return found

    def restore(self) -> None:
        """Set them as they were."""
        for source, known in zip(self._sources, self._known, strict=True):
            for name in _unlike(known, source.values()):
                if name in known:
                    source.set(name, put_back(source.own.get(name), known[name]))
                else:
                    source.drop(name)

    def _note(self) -> None:
        self._sizes = [(part.own, len(part.own)) for part in self._sources if part.names is None]
        self._parts = []
        for source, known in zip(self._sources, self._known, strict=True):
            values = tuple(known.values())
            if values:
                part = values if len(values) != 1 else values[0]
                self._parts.append((itemgetter(*known), source.own, part))


def steadily_traced(block: Any, args: Sequence[Any]) -> Traced:
    """The Block's Symbol; what its Python does once may be done.

    Raises:
        UnsupportedError: it cannot be traced, or sets something in every call.
    """
    before = Settings(block)
    traced = trace(block, args)
    if before.changed():
        then = Settings(block)
        traced = trace(block, args)
        if names := then.changed():
            before.restore()
            raise UnsupportedError(f"{describe(block)} sets {names[0]} in every call")
    return traced


def _unlike(known: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """Names whose values are others."""
    names = {*known, *now}
    return {n for n in names if not are_alike(known.get(n, _ABSENT), now.get(n, _ABSENT))}


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
