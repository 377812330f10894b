"""What is worth compiling, where many different things are asked for and nobody knows how often.

The ski-rental rule: from the ninth on, or the second of a kind where compiling takes long, each is
run as plain MXNet runs it until that has taken as long as compiling takes, and compiled then. So no
sequence of calls takes more than twice as long as by the better of both, whatever comes (Karlin,
Manasse, Rudolph and Sleator, Competitive snoopy caching, Algorithmica 3, 1988).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final

#: So many are compiled when they are first asked for: buckets, a last batch, another batch size.
AT_ONCE: Final = 8
#: Seconds that compiling takes on average from which on only the first of a kind is one of them.
_DEAR_S: Final = 3.0
#: How many are remembered that are not compiled.
_REMEMBERED: Final = 4096
#: A backward pass takes about twice as long as what it is the backward of.
_STEP: Final = 3.0


class SkiRental:
    """What compiling took, and plain calls.

    Attributes:
        plain_calls: how many there were.
    """

    def __init__(self) -> None:
        """Nothing was compiled yet."""
        self._spent: OrderedDict[Hashable, float] = OrderedDict()  # seconds of plain calls
        self._lock = threading.Lock()
        self._compiling = 0.0
        self._compiled = 0
        self.plain_calls = 0

    @property
    def not_compiled(self) -> int:
        """How many different things ran plain, as far as remembered."""
        return len(self._spent)

    def compiled(self, key: Hashable, seconds: float) -> None:
        """It was compiled, which took so long."""
        with self._lock:
            self._compiled += 1
            self._compiling += seconds
            self._spent.pop(key, None)

    def is_due(self, key: Hashable, *, is_first: bool = True) -> bool:
        """Whether it is to be compiled now; ``is_first``: nothing of its kind was so far."""
        is_cheap = self._compiling <= _DEAR_S * self._compiled
        if self._compiled < AT_ONCE and (is_first or is_cheap):
            return True
        return self._spent.get(key, 0.0) * self._compiled >= self._compiling

    @contextmanager
    def timed(self, key: Hashable, *, is_step: bool) -> Iterator[list[Any]]:
        """Times a plain call, whose results are to be put into the list and are waited for.

        Args:
            key: what runs.
            is_step: whether a backward pass will follow.
        """
        made: list[Any] = []
        start = time.perf_counter()
        yield made
        for array in made:
            array.wait_to_read()  # calls return before they have run
        self._spend(key, (time.perf_counter() - start) * (_STEP if is_step else 1.0))

    def _spend(self, key: Hashable, seconds: float) -> None:
        with self._lock:
            self.plain_calls += 1
            # The first call of a shape plans memory, which says little about those after it.
            before = self._spent.pop(key, None)
            self._spent[key] = 0.0 if before is None else before + seconds
            if len(self._spent) > _REMEMBERED:
                self._spent.popitem(last=False)
