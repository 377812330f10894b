"""What was measured for one graph, for graphs that differ from it in sizes only.

A net that is called with a batch of 16 and then with one of 11 is compiled twice, and measuring
takes most of that time. What is fastest rarely depends on so little, so the second graph goes by
what was found for the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

#: Where in a graph, and between what, something was chosen: names that do not depend on sizes.
Place = tuple[str, ...]
Shapes = Sequence[tuple[int, ...]]

#: What was measured for sizes that are at most so many times as large, or as small, is good enough.
_MOST_TIMES: Final = 2.0
_NEVER: Final = float("inf")


def _forget(_findings: Findings) -> None:
    """Nobody else wants to know."""


class Findings:
    """What was measured while one graph was compiled, by where in it.

    Attributes:
        shapes: of the graph's data.
        like: those of a graph that it goes by where nothing was measured for itself.
        seconds: that were spent on measuring.
        earlier_s: about as many as an earlier process spent on what is remembered.
        is_makeshift: whether something was taken from a graph of quite other sizes.
        told: the sizes of the graph that something was taken from; empty if nothing was.
    """

    def __init__(
        self,
        shapes: Shapes = (),
        akin: Iterable[Findings] = (),
        keep: Callable[[Findings], None] = _forget,
        *,
        of_any_size: bool = True,
    ) -> None:
        """Nothing is measured yet.

        Args:
            shapes: of the graph's data.
            akin: those of graphs that may differ from it in sizes only.
            keep: called once all is measured.
            of_any_size: whether those of quite other sizes will do for a while.
        """
        self.shapes, self._keep = shapes, keep
        # One that went by another itself is no measure for a third: sizes would drift away.
        measured = [findings for findings in akin if not findings.goes_by_another]
        times = [_times(shapes, each.shapes) for each in measured]
        self._times = min(times, default=_NEVER)
        will_do = self._times < _NEVER if of_any_size else self._times <= _MOST_TIMES
        self.like: Findings | None = measured[times.index(self._times)] if will_do else None
        self.seconds, self.earlier_s, self.is_makeshift = 0.0, 0.0, False
        self.told = ""
        self._found: dict[Place, Any] = {}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Findings:
        """Those that :meth:`as_json` gave in an earlier process."""
        found = cls([tuple(shape) for shape in kept["shapes"]])
        found._found = {tuple(place): value for place, value in kept["found"]}
        found.earlier_s = kept["seconds"]
        return found

    def as_json(self) -> dict[str, Any]:
        """A form for JSON."""
        found = self._found.copy()  # another thread may note something meanwhile
        return {
            "shapes": [list(shape) for shape in self.shapes],
            "found": [[list(place), value] for place, value in found.items()],
            "seconds": self.seconds + self.earlier_s,
        }

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured."""
        return not self._found

    @property
    def notes(self) -> list[tuple[Place, Any]]:
        """What was noted so far."""
        return list(self._found.items())

    @property
    def goes_by_another(self) -> bool:
        """Whether there is a graph whose findings are of use to this one."""
        return self.like is not None

    def __str__(self) -> str:
        """The sizes of the graph's data."""
        return ", ".join("x".join(map(str, shape)) for shape in self.shapes)

    def note(self, place: Place, found: Any) -> None:
        """Keep what was measured there."""
        self._found[place] = found

    def are_complete(self) -> None:
        """All is measured."""
        self._keep(self)

    def taken(self, place: Place) -> Any:
        """What the other graph's findings say about a place; ``None`` if nothing."""
        found = None if self.like is None else self.like._found.get(place)
        if found is not None:
            self.told = str(self.like)
            self.is_makeshift |= self._times > _MOST_TIMES
        return found

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """The block measures something; its seconds count."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside the block measurements of this thread are for that graph."""
        before, _ACTIVE.findings = _ACTIVE.findings, self
        try:
            yield
        finally:
            _ACTIVE.findings = before


class _Active(threading.local):
    findings: Findings | None = None


_ACTIVE: Final = _Active()


def active() -> Findings:
    """Those that measurements of this thread are noted in now."""
    return _ACTIVE.findings or Findings()


def _times(some: Shapes, others: Shapes) -> float:
    """By how much the sizes of one differ at most from those of the other."""
    if [*map(len, some)] != [*map(len, others)]:
        return _NEVER
    pairs = [pair for a, b in zip(some, others, strict=True) for pair in zip(a, b, strict=True)]
    return max((max(pair) / max(min(pair), 1) for pair in pairs), default=1.0)
