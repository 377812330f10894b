"""Orders in which buffers are placed greedily; which is best differs from graph to graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphopt.memory.buffers import Integers
from graphopt.memory.model import Model


def _peak(model: Model) -> Integers:
    """The largest load during each buffer's lifetime: doubling windows, O(n log n)."""
    length = model.last - model.first
    levels = [model.load]
    while 2 ** len(levels) <= model.sections:
        half = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
    level = np.frexp(length.astype(np.float64))[1] - 1
    peak = np.empty(len(model), np.int64)
    for k, window in enumerate(levels):
        some = level == k
        peak[some] = np.maximum(window[model.first[some]], window[model.last[some] - 2**k])
    return peak


def _sorted(*keys: Integers) -> Integers:
    """Buffers by descending keys, the first counting most; ties keep the order they had."""
    order: Integers = np.lexsort([-key for key in reversed(keys)])
    return order


def _by_size(model: Model) -> Integers:
    return _sorted(model.size, model.last - model.first)


def _by_lifetime(model: Model) -> Integers:
    return _sorted(model.last - model.first, model.size)


def _by_area(model: Model) -> Integers:
    # In floating point: a product of sizes and lifetimes may not fit 64 bits.
    area = model.size.astype(np.float64) * (model.last - model.first)
    return np.argsort(-area, kind="stable").astype(np.int64)


def _by_contention(model: Model) -> Integers:
    return _sorted(_peak(model), model.size)


def _by_contention_and_lifetime(model: Model) -> Integers:
    return _sorted(_peak(model), model.last - model.first, model.size)


def _by_start(model: Model) -> Integers:
    return _sorted(-model.first, model.last - model.first, model.size)


def _by_end(model: Model) -> Integers:
    return _sorted(model.last, model.last - model.first, model.size)


#: By name; the promising come first, for when there is no time for all.
ORDERS: dict[str, Callable[[Model], Integers]] = {
    "size": _by_size,
    "area": _by_area,
    "lifetime": _by_lifetime,
    "contention": _by_contention,
    "contention, lifetime": _by_contention_and_lifetime,
    "start": _by_start,
    "end": _by_end,
}
