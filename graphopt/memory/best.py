"""The best plan so far, what is known of the optimum, and whether to go on."""

from __future__ import annotations

import time

import numpy as np

from graphopt.memory.buffers import Integers
from graphopt.memory.model import Model


class Best:
    """What the methods of one call of the packer share.

    Attributes:
        model: the problem.
        offsets: int64 ``[n]``, units, of the best plan so far.
        arena: its bytes.
        lower_bound: bytes that no plan can do without.
        method: what found the plan.
        deadline: moment of ``time.perf_counter`` to stop at.
        capacity: bytes that are enough, if any number is.
    """

    def __init__(self, model: Model, capacity: int | None, deadline: float) -> None:
        """Begin with all buffers side by side, which is always right."""
        self.model = model
        self.capacity = capacity
        self.deadline = deadline
        self.offsets: Integers = np.cumsum(model.size, dtype=np.int64) - model.size
        self.arena = model.arena(self.offsets)
        self.lower_bound = model.lower_bound()
        self.method = "none"

    def offer(self, offsets: Integers, method: str) -> bool:
        """Take a plan if it is smaller than the best, and tell whether it is."""
        arena = self.model.arena(offsets)
        if arena >= self.arena and self.method != "none":
            return False
        self.offsets, self.arena, self.method = offsets.copy(), arena, method
        return True

    def raise_bound(self, proved: int) -> None:
        """Note that no plan takes less than ``proved`` bytes."""
        self.lower_bound = max(self.lower_bound, proved)

    @property
    def is_enough(self) -> bool:
        """Whether no better plan is wanted or possible."""
        if self.arena <= self.lower_bound:
            return True
        return self.capacity is not None and not self.lower_bound <= self.capacity < self.arena

    @property
    def seconds_left(self) -> float:
        """Until the deadline; negative when it is over."""
        return self.deadline - time.perf_counter()
