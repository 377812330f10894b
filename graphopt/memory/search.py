"""Search for a plan as small as the lower bound, and for smaller ones than the best so far.

The exact search either ends soon or not at all, depending on what it tries first; so it is begun
again and again with other preferences, as M. Luby, A. Sinclair and D. Zuckerman advise in "Optimal
speedup of Las Vegas algorithms", Information Processing Letters 47, 1993.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from graphopt.kernels.packing.skyline import EXHAUSTED, FOUND
from graphopt.memory.best import Best
from graphopt.memory.buffers import Integers
from graphopt.memory.decision import Decider
from graphopt.memory.model import Model
from graphopt.memory.reorder import Reordering

Floats = npt.NDArray[np.float64]

#: Decisions per buffer before a search for the lower bound, and for any smaller plan, is given up.
PATIENCE, IMPATIENCE = 8, 3

#: Sections times live buffers times buffers: what the search for one plan costs, in innermost
#: steps, up to which it is worth its while.
MAX_STEPS = 2_000_000_000


def run(best: Best, seed: int) -> None:
    """Improve the best plan until it is enough or the time is over."""
    generator = np.random.default_rng(seed)
    decider = Decider(best.model)
    if decider.incidences * len(best.model) > MAX_STEPS:
        Reordering(best, generator).run(best.seconds_left)
        return
    for length in luby():
        if _is_over(best):
            return
        _decide(best, decider, 0.0, _any(best.model, generator), PATIENCE * length)
        while not _is_over(best):
            share = generator.uniform(0.2, 0.95)
            if not _decide(best, decider, share, _large(best.model, generator), IMPATIENCE):
                break


def _is_over(best: Best) -> bool:
    return best.is_enough or best.seconds_left <= 0


def _decide(best: Best, decider: Decider, share: float, priority: Integers, patience: int) -> bool:
    """Look for a plan somewhere between the lower bound and the best, and note what is learnt.

    Args:
        best: the best plan, and the lower bound.
        decider: of the same model.
        share: 0 is the lower bound; at 1 would be the best plan, or the capacity.
        priority: int64 ``[n]``, the higher the earlier a buffer is tried.
        patience: decisions per buffer.
    """
    # Offsets that are no multiples of the unit would gain nothing.
    high = best.arena - 1 if best.capacity is None else best.capacity
    target = min(high, best.lower_bound + int(share * (high - best.lower_bound)))
    ended, offsets = decider.decide(best, target, priority, patience * len(best.model))
    if ended == EXHAUSTED:
        best.raise_bound(best.model.next_arena(target))
    return ended == FOUND and best.offer(offsets, "search")


def _any(model: Model, generator: np.random.Generator) -> Integers:
    """A random preference, int64 ``[n]``, by one of many properties, for tight plans."""
    luck = generator.normal(size=len(model))
    scores = (
        luck,
        _logarithm(model, 1, 1) + 0.3 * luck,
        _logarithm(model, 1, 0) + 0.3 * luck,
        _logarithm(model, 0, 1) + 0.3 * luck,
        model.last + 2 * luck,
        -model.last + 2 * luck,
        -model.first + 2 * luck,
    )
    return _ranks(scores[generator.integers(len(scores))])


def _large(model: Model, generator: np.random.Generator) -> Integers:
    """A random preference for what is large, int64 ``[n]``: where there is room, it fills it."""
    luck = generator.normal(size=len(model))
    sizes = generator.choice([0.0, 0.5, 1.0, 1.0, 2.0])
    return _ranks(_logarithm(model, 1, sizes) + generator.choice([0.1, 0.3]) * luck)


def _logarithm(model: Model, lifetimes: float, sizes: float) -> Floats:
    """Logarithm of a product of powers of lifetimes and sizes, float64 ``[n]``."""
    length = (model.last - model.first).astype(np.float64)
    product = lifetimes * np.log(length) + sizes * np.log(model.size.astype(np.float64))
    return np.asarray(product)


def _ranks(score: Floats) -> Integers:
    return np.argsort(np.argsort(score)).astype(np.int64)


def luby() -> Iterator[int]:
    """1, 1, 2, 1, 1, 2, 4, 1, ...: each power of two half as often as the one before."""
    count = 1
    while True:
        k = count
        while (k + 1) & k:
            k -= (1 << (k.bit_length() - 1)) - 1
        yield (k + 1) >> 1
        count += 1
