"""Search for a plan as small as the lower bound, and for smaller ones than the best so far.

The exact search either ends soon or not at all, depending on what it tries first; so it is begun
again and again with other preferences, as M. Luby, A. Sinclair and D. Zuckerman advise in "Optimal
speedup of Las Vegas algorithms", Information Processing Letters 47, 1993.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphopt.kernels.packing.skyline import EXHAUSTED, FOUND
from graphopt.memory.best import Best
from graphopt.memory.buffers import Integers
from graphopt.memory.decision import Decider
from graphopt.memory.model import Model

#: Where between lower bound and best plan the next is looked for, in turns.
SHARES = (0.0, 0.0, 0.5, 0.0, 0.0, 0.25, 0.0, 0.0, 0.8)

#: Decisions per buffer before the first search is begun again.
PATIENCE = 8


def run(best: Best, seed: int) -> None:
    """Improve the best plan until it is enough or the time is over."""
    decider = Decider(best.model)
    generator = np.random.default_rng(seed)
    for turn, length in enumerate(luby()):
        if best.is_enough or best.seconds_left <= 0:
            return
        target = _target(best, SHARES[turn % len(SHARES)])
        nodes = PATIENCE * length * len(best.model)
        ended, offsets = decider.decide(best, target, _priority(best.model, generator), nodes)
        if ended == FOUND:
            best.offer(offsets, "search")
        elif ended == EXHAUSTED:
            best.raise_bound(best.model.next_arena(target))


def _target(best: Best, share: float) -> int:
    """Bytes to look for: at least the lower bound, and less than the best plan."""
    high = best.arena - 1 if best.capacity is None else best.capacity
    return min(high, best.lower_bound + int(share * (high - best.lower_bound)))


def _priority(model: Model, generator: np.random.Generator) -> Integers:
    """A random preference among buffers, int64 ``[n]``: by one of their properties, and by luck."""
    length = (model.last - model.first).astype(np.float64)
    size = model.size.astype(np.float64)
    luck = generator.normal(size=len(model))
    scores = (
        luck,
        np.log(length * size) + 0.3 * luck,
        model.last + 2 * luck,
        -model.last + 2 * luck,
        -model.first + 2 * luck,
        np.log(length) + 0.3 * luck,
        np.log(size) + 0.3 * luck,
    )
    score = scores[generator.integers(len(scores))]
    return np.argsort(np.argsort(score)).astype(np.int64)


def luby() -> Iterator[int]:
    """1, 1, 2, 1, 1, 2, 4, 1, ...: each power of two once in twice as many as half of it."""
    count = 1
    while True:
        # How often an odd number of trailing runs is complete: the standard recursion, unrolled.
        k = count
        while (k + 1) & k:
            k -= (1 << (k.bit_length() - 1)) - 1
        yield (k + 1) >> 1
        count += 1
