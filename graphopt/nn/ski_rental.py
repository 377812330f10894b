"""What is worth compiling, where many different things are asked for and nobody knows how often.

The ski-rental rule: from the ninth on, or the second of a kind where compiling takes long, each is
run as plain MXNet runs it until that has taken as long as compiling takes, and compiled then. So no
sequence of calls takes more than twice as long as by the better of both, whatever comes (Karlin,
Manasse, Rudolph and Sleator, Competitive snoopy caching, Algorithmica 3, 1988).
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from graphopt.forking import lock

#: So many are compiled when they are first asked for: buckets, a last batch, another batch size.
AT_ONCE: Final = 8
#: Seconds that compiling takes on average from which on only the first of a kind is one of them.
_DEAR_S: Final = 3.0
#: How many are remembered that are not compiled.
_REMEMBERED: Final = 4096
#: Calls of each that are waited for, to know what they take; the first one plans memory.
_TIMED: Final = 3
#: A backward pass takes about twice as long as what it is the backward of.
_STEP: Final = 3.0


@dataclass
class _Rented:
    """Calls of something that is not compiled."""

    calls: int = 0
    seconds: float = math.inf  # of one
    spent: float = 0.0


class SkiRental:
    """What compiling took, and plain calls.

    Attributes:
        plain_calls: how many there were.
    """

    def __init__(self) -> None:
        """Nothing was compiled yet."""
        self._rented: OrderedDict[Hashable, _Rented] = OrderedDict()
        self._kinds: dict[Hashable, float] = {}
        self._lock = lock()
        self._compiling = 0.0
        self._compiled = 0
        self.plain_calls = 0

    @property
    def not_compiled(self) -> int:
        """How many different things ran plain, as far as remembered."""
        return len(self._rented)

    def compiled(self, key: Hashable, seconds: float, kind: Hashable = None) -> None:
        """It was compiled, which took so long."""
        with self._lock:
            self._kinds.pop(kind, None)
            self._compiled += 1
            self._compiling += seconds
            self._rented.pop(key, None)

    @property
    def spent(self) -> float:
        """Seconds of all compiling."""
        return self._compiling

    @property
    def average(self) -> float:
        """Seconds that compiling takes."""
        return self._compiling / max(self._compiled, 1)

    def compiles_at_once(self, *, is_first: bool = True, at_once: int = AT_ONCE) -> bool:
        """Whether what is asked for the first time is compiled; see :meth:`is_due`."""
        is_cheap = self._compiling <= _DEAR_S * self._compiled
        return self._compiled < at_once and (is_first or is_cheap)

    def is_due(
        self,
        key: Hashable,
        *,
        is_first: bool = True,
        may_wait: bool = False,
        at_once: int = AT_ONCE,
        kind: Hashable = None,
    ) -> bool:
        """Whether it is to be compiled now.

        Args:
            key: what is asked for.
            is_first: nothing of its kind was compiled so far.
            may_wait: what runs it until then is about as fast.
            at_once: how many are compiled at their first call.
            kind: it is due, too, once all calls that were timed as of this kind have taken as long
                as compiling does.
        """
        if not may_wait and self.compiles_at_once(is_first=is_first, at_once=at_once):
            return True
        rented = self._rented.get(key)
        spent = max(rented.spent if rented else 0.0, self._kinds.get(kind, 0.0))
        return spent >= self.average

    @contextmanager
    def timed(
        self, key: Hashable, *, is_step: bool, saved: float = 1.0, kind: Hashable = None
    ) -> Iterator[list[Any]]:
        """Counts a plain call, whose results are to be put into the list.

        The first ones are waited for, and what they take is taken for what the others do.

        Args:
            key: what runs.
            is_step: whether a backward pass will follow.
            saved: the share of its time that compiling would save.
            kind: what it counts for besides, if that is worth compiling for.
        """
        made: list[Any] = []
        with self._lock:
            rented = self._rented.pop(key, None) or _Rented()
            self._rented[key] = rented
            if len(self._rented) > _REMEMBERED:
                self._rented.popitem(last=False)
        start = time.perf_counter()
        yield made
        if rented.calls < _TIMED:
            for array in made:
                array.wait_to_read()  # calls return before they have run
        seconds = time.perf_counter() - start
        with self._lock:
            self.plain_calls += 1
            rented.calls += 1
            if 1 < rented.calls <= _TIMED:
                rented.seconds = min(rented.seconds, seconds)
            worth = saved * (_STEP if is_step else 1.0)
            if rented.calls > 1:
                rented.spent += rented.seconds * worth
            if kind is not None:
                known = min(rented.seconds, seconds) if rented.calls <= _TIMED else rented.seconds
                self._kinds[kind] = self._kinds.get(kind, 0.0) + known * worth
