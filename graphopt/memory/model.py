"""The packing problem in whole units, with time cut down to the sections that matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphopt.cached import cached_property
from graphopt.memory.buffers import Buffers, Integers


@dataclass(frozen=True, eq=False)
class Model:
    """Buffers over sections of time, in units of the alignment or of a multiple.

    A section is a moment before which a buffer starts and after which one ends. Two buffers are
    live at once if and only if they share a section, and what is live at any other moment is also
    live in a section.

    Attributes:
        size: int64 ``[n]``, units, rounded up.
        first: int64 ``[n]``, section in which a buffer starts.
        last: int64 ``[n]``, section before which it ends.
        padding: int64 ``[n]``, bytes that rounding added to the size.
        unit: bytes.
    """

    size: Integers
    first: Integers
    last: Integers
    padding: Integers
    unit: int

    @classmethod
    def of(cls, buffers: Buffers, alignment: int) -> Model:
        """The problem of placing these buffers at multiples of the alignment."""
        common = int(np.gcd.reduce(buffers.size)) if len(buffers) else alignment
        # Buffers that lie as low as they can lie at sums of sizes.
        unit = alignment if common % alignment else common
        size = -(-buffers.size // unit)
        first, last = _sections(buffers.lower, buffers.upper)
        return cls(size, first, last, size * unit - buffers.size, unit)

    def __len__(self) -> int:
        return len(self.size)

    @property
    def sections(self) -> int:
        """How many there are."""
        return int(self.last.max(initial=0))

    @cached_property
    def load(self) -> Integers:
        """Units live in each section."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.first, self.size)
        np.add.at(change, self.last, -self.size)
        return np.cumsum(change)[:-1]

    def lower_bound(self) -> int:
        """Bytes that no plan can do without.

        All buffers of a section but the highest take whole units.
        """
        spared = np.zeros(self.sections, np.int64)
        if self.padding.any():
            for b in np.flatnonzero(self.padding):
                span = spared[self.first[b] : self.last[b]]
                np.maximum(span, self.padding[b], out=span)
        return int((self.load * self.unit - spared).max(initial=0))

    def arena(self, offsets: Integers) -> int:
        """Bytes that a plan with these offsets, in units, takes."""
        return int(((offsets + self.size) * self.unit - self.padding).max(initial=0))

    def next_arena(self, nbytes: int) -> int:
        """The smallest arena above ``nbytes`` that any plan could have."""
        return nbytes + 1 if self.padding.any() else (nbytes // self.unit + 1) * self.unit

    def limits(self, capacity: int) -> Integers:
        """int64 ``[n]``: what the buffers' ends must not exceed to fit ``capacity`` bytes."""
        return (capacity + self.padding) // self.unit


def _sections(lower: Integers, upper: Integers) -> tuple[Integers, Integers]:
    """Number the runs of starts: an end between two starts begins a new section."""
    count = len(lower)
    times = np.concatenate([upper, lower])
    is_start = np.repeat(np.array([False, True]), count)
    order = np.lexsort((is_start, times))  # lifetimes are half-open: ends come first
    sorted_starts = is_start[order]
    follows_start = np.concatenate([[False], sorted_starts[:-1]])
    section = np.cumsum(sorted_starts & ~follows_start) - 1
    found = np.empty(2 * count, np.int64)
    found[order] = section
    return found[count:], found[:count] + 1
