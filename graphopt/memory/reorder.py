"""Local search on the order of greedy placement: what ends too high is placed earlier."""

from __future__ import annotations

import time

import numpy as np

from graphopt.kernels.packing.greedy import place
from graphopt.memory.best import Best
from graphopt.memory.buffers import Integers

#: One in so many moves exchanges two buffers anywhere instead.
EXCHANGES = 4


class Reordering:
    """A walk over orders that continues where it stopped."""

    def __init__(self, best: Best, generator: np.random.Generator) -> None:
        """Begin with the best plan: its buffers by offset are an order that leads to it again."""
        self._best = best
        self._generator = generator
        self._order: Integers = np.argsort(best.offsets, kind="stable")
        self._arena = -(-best.arena // best.model.unit)
        self._offsets = best.offsets.copy()
        self._scratch = np.empty((4, len(best.model)), np.int64)

    def run(self, seconds: float) -> None:
        """Walk for some time, or until the plan is enough."""
        end = min(time.perf_counter() + seconds, self._best.deadline)
        while time.perf_counter() < end and not self._best.is_enough:
            self._step()

    def _step(self) -> None:
        model = self._best.model
        order, offsets = self._moved(), np.empty_like(self._offsets)
        arena = place(
            order,
            model.size,
            model.first,
            model.last,
            False,
            self._arena + 1,
            offsets,
            self._scratch,
        )
        if arena <= self._arena:
            self._order, self._offsets, self._arena = order, offsets, arena
            self._best.offer(offsets, "reordering")

    def _moved(self) -> Integers:
        draw = self._generator.integers
        order = self._order.copy()
        if draw(EXCHANGES) == 0:
            i, j = draw(len(order), size=2)
            order[i], order[j] = order[j], order[i]
            return order
        ends = self._offsets + self._best.model.size
        high = np.flatnonzero(ends[order] == self._arena)
        at = int(high[draw(len(high))])
        to = int(draw(at + 1))
        order[to : at + 1] = np.roll(order[to : at + 1], 1)
        return order
