"""Times of things that run in turns, so that a machine that slows down slows all of them."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping

#: Longer than any of the runtimes measured lets its idle threads spin.
_REST_S = 0.05

#: Runs something this often, waits for the results, returns the milliseconds of every run.
Timed = Callable[[int], list[float]]


def timed(run: Callable[[], object]) -> Timed:
    """Times a call that returns when its results are there."""

    def measure(count: int) -> list[float]:
        found = []
        for _ in range(count):
            start = time.perf_counter()
            run()
            found.append((time.perf_counter() - start) * 1e3)
        return found

    return measure


class Race:
    """Contenders that run in turns, in blocks of calls.

    Every block starts with a rest, in which the idle threads of the contender before stop spinning,
    and a call that does not count: it brings caches and sleeping threads back. The order changes at
    random, so that nobody always runs behind the same neighbour.

    Args:
        contenders: by name.
        block_ms: how long a block is, roughly; it has at least one call.
    """

    def __init__(self, contenders: Mapping[str, Timed], block_ms: float = 150.0) -> None:
        """Call each once, to see how many calls make a block."""
        self._contenders = dict(contenders)
        self._calls: dict[str, int] = {}
        self._random = random.Random(0)
        for name, run in self._contenders.items():
            rough = min(run(2))
            self._calls[name] = max(1, min(1000, round(block_ms / max(rough, 1e-3))))
        self._medians: dict[str, list[float]] = {name: [] for name in contenders}

    def round(self) -> None:
        """One block of each."""
        names = list(self._contenders)
        self._random.shuffle(names)
        for name in names:
            run = self._contenders[name]
            time.sleep(_REST_S)
            run(1)
            self._medians[name].append(statistics.median(run(self._calls[name])))

    def run(self, seconds: float, least: int = 3) -> dict[str, float]:
        """Rounds for that long; returns :meth:`medians`."""
        start = time.perf_counter()
        done = 0
        while done < least or time.perf_counter() - start < seconds:
            self.round()
            done += 1
        return self.medians()

    def medians(self) -> dict[str, float]:
        """Milliseconds a call: the median of the blocks' medians."""
        return {name: statistics.median(found) for name, found in self._medians.items()}
