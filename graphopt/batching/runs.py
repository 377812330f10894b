"""Runs of adjacent rows, each packed into one integer, and their expansion by numpy.

A store is what one output of one group will be: ``(rows, *tail)``. A value is one run of rows of a
store, or several. While thousands of calls are recorded, one integer a value is what is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.errors import UnsupportedError

#: Bits of a packed run, from the lowest: number of rows, first row, store.
COUNT_BITS, START_BITS = 21, 26
STORE_SHIFT = COUNT_BITS + START_BITS
COUNT_MASK = (1 << COUNT_BITS) - 1
START_MASK = (1 << START_BITS) - 1
MAX_STORES = 1 << (63 - STORE_SHIFT)

Ints = np.ndarray[Any, np.dtype[np.int64]]


def pack(store: int, start: int, count: int) -> int:
    """One run as an integer.

    Raises:
        UnsupportedError: more rows or stores than fit.
    """
    if count > COUNT_MASK or start > START_MASK or store >= MAX_STORES:
        raise UnsupportedError(
            f"one batch cannot hold {start + count} rows of one operator in {store} groups:"
            " give fewer samples at a time"
        )
    return store << STORE_SHIFT | start << COUNT_BITS | count


def unpack(run: int) -> tuple[int, int, int]:
    """Store, first row and number of rows."""
    return run >> STORE_SHIFT, run >> COUNT_BITS & START_MASK, run & COUNT_MASK


def cut(run: int, begin: int, end: int) -> int:
    """Rows ``begin`` to ``end`` of a run."""
    store, start, _ = unpack(run)
    return pack(store, start + begin, end - begin)


def expand(runs: Ints) -> tuple[Ints, Ints]:
    """Store and row of every row of many runs, in order: two arrays of one entry a row."""
    counts = runs & COUNT_MASK
    starts = runs >> COUNT_BITS & START_MASK
    stores = runs >> STORE_SHIFT
    if counts.size == 0 or int(counts.max()) == 1:
        return stores, starts
    ends = np.cumsum(counts)
    inside = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    return np.repeat(stores, counts), np.repeat(starts, counts) + inside
