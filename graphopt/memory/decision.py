"""One question to the exact search: is there a plan of so many bytes?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphopt.cached import cached_property
from graphopt.kernels.packing.skyline import (
    AT,
    CROSSING,
    FIRST,
    HIGH,
    LAST,
    LEFT,
    LIMIT,
    LOW,
    OFFSET,
    PAUSED,
    PRIORITY,
    SIZE,
    WITNESS,
    State,
    search,
)
from graphopt.memory.best import Best
from graphopt.memory.buffers import Integers
from graphopt.memory.model import Model

#: Rows of memory for changes to be taken back, at most; a search that needs more is given up.
MAX_CHANGES = 1 << 20

#: Steps of the innermost loop, about, between two looks at the clock.
CHUNK = 10_000_000


@dataclass(frozen=True, eq=False)
class Decider:
    """The search over one model, for different limits and preferences."""

    model: Model

    @cached_property
    def incidences(self) -> int:
        """Pairs of a section and a buffer live in it: what a decision costs at most."""
        return int((self.model.last - self.model.first).sum())

    @cached_property
    def _by_section(self) -> tuple[Integers, Integers]:
        """Where the buffers of each section begin, and the buffers, one list after another."""
        model = self.model
        length = model.last - model.first
        buffers = np.repeat(np.arange(len(model)), length)
        sections = np.arange(len(buffers)) - np.repeat(np.cumsum(length) - length, length)
        sections += model.first[buffers]
        order = np.argsort(sections, kind="stable")
        at = np.searchsorted(sections[order], np.arange(model.sections + 1))
        return at.astype(np.int64), buffers[order].astype(np.int64)

    def decide(
        self, best: Best, capacity: int, priority: Integers, nodes: int
    ) -> tuple[int, Integers]:
        """Search from the start, until the nodes are used up or the time is over.

        Args:
            best: for the deadline.
            capacity: bytes that the plan may take.
            priority: int64 ``[n]``, the higher the earlier a buffer is tried.
            nodes: decisions to try at most.

        Returns:
            How it ended, and offsets in units; those are a plan where it ended with ``FOUND``.
        """
        limits = self.model.limits(capacity)
        state = self._start(limits, priority)
        chunk = max(1, min(nodes, CHUNK // self.incidences))
        ended = PAUSED
        while ended == PAUSED and nodes > 0 and best.seconds_left > 0:
            ended = search(state, int(limits.max()), min(chunk, nodes))
            nodes -= chunk
        return ended, state.buffer[:, OFFSET]

    def _start(self, limits: Integers, priority: Integers) -> State:
        """Nothing is placed; memory is as large as it can have to be, up to a limit."""
        n, m = len(self.model), self.model.sections
        changes = min(n * m + 4 * self.incidences, MAX_CHANGES)
        return State(
            section=self._sections.copy(),
            buffer=self._buffers(limits, priority),
            listed=self._by_section[1],
            heights=np.empty((changes + 2 * m, 4), np.int64),
            tops=np.empty((min(n * n, MAX_CHANGES) + n, 3), np.int64),
            level=np.empty((4 * n + 2 * m, 9), np.int64),
            cases=np.empty(changes + n + 1, np.int64),
            control=np.array([-1, 0, 0, 0, 0, 0, 0], np.int64),
            scratch=np.empty(2 * m + 2, np.int64),
        )

    @cached_property
    def _sections(self) -> Integers:
        model, m = self.model, self.model.sections
        crossing = np.zeros(m + 1, np.int64)
        np.add.at(crossing, model.first, 1)
        np.add.at(crossing, model.last - 1, -1)
        rows = np.zeros((m + 1, 7), np.int64)
        rows[:, LOW] = np.arange(m + 1)
        rows[:, HIGH] = np.arange(1, m + 2)
        rows[:-1, LEFT] = model.load
        rows[:-1, CROSSING] = np.cumsum(crossing)[:-1]
        rows[:, AT] = self._by_section[0]
        return rows

    def _buffers(self, limits: Integers, priority: Integers) -> Integers:
        model = self.model
        rows = np.zeros((len(model), 8), np.int64)
        rows[:, SIZE], rows[:, FIRST], rows[:, LAST] = model.size, model.first, model.last
        rows[:, LIMIT], rows[:, PRIORITY] = limits, priority
        rows[:, OFFSET], rows[:, WITNESS] = -1, model.first
        return rows
