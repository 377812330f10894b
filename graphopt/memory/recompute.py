"""Which values a training step keeps for its backward, and which it computes again.

Chen, Xu, Zhang and Guestrin, Training Deep Nets with Sublinear Memory Cost (2016), keep values at
cuts of a chain and compute again what lies between. Here cuts are chosen by what is alive across
them, so that they serve any graph, and what is dear to compute is kept where the budget allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

#: How many limits to segments are tried, each so much smaller than the last.
_SIZES = 24
_SHRINK = 0.9
#: At every how many narrow places an order is cut, for plans that cut at equal distances.
_STRIDES = (1, 2, 3, 4, 6)
#: How many bounds on what may be computed again, by time a byte, are tried.
_BOUNDS = 6
#: How many of the plans that fit are refined.
_REFINED = 3
#: How many outputs a finished plan is tried to keep, one after the other.
_SINGLE = 60
#: How many values are kept or not, each alone, where nothing fits.
_TOGGLED = 60
_NEVER = np.iinfo(np.int64).max // 2


@dataclass(frozen=True)
class Work:
    """What one operator of a forward graph takes.

    Attributes:
        name: of its node.
        nbytes: of its outputs.
        seconds: that it runs.
        can_repeat: whether it computes the same again.
        inputs: which operators before it, by place in the order, it reads.
    """

    name: str
    nbytes: int
    seconds: float
    can_repeat: bool
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cost:
    """What a plan comes to.

    Attributes:
        nbytes: of what a step computes.
        repeated: operators that are in fact computed again.
        setting: of whoever allocates, by which it came to this.
    """

    nbytes: int
    repeated: frozenset[str]
    setting: int = 0


@dataclass(frozen=True)
class Plan:
    """Operators whose outputs are not kept.

    Attributes:
        marks: names of the operators.
        cost: what that comes to.
        seconds: that it adds to a step.
    """

    marks: frozenset[str]
    cost: Cost
    seconds: float


@dataclass
class Search:
    """Plans for one forward graph, each tried once.

    Attributes:
        work: of its operators, in order.
        evaluate: what a set of marks comes to.
    """

    work: Sequence[Work]
    evaluate: Callable[[frozenset[str]], Cost]
    tried: dict[frozenset[str], Plan] = field(default_factory=dict)

    def plan(self, budget: int) -> Plan | None:
        """The plan with the least time that takes at most ``budget`` bytes, if one was found."""
        plain = self.attempt(frozenset())
        if plain.cost.nbytes <= budget:
            return plain
        for marks in self._families():
            self.attempt(marks)
        if not self._fitting(budget):
            self._squeeze(budget)
        for plan in self._fitting(budget)[:_REFINED]:
            self._keep_dear(plan, budget)
        for plan in self._fitting(budget)[:1]:
            self._keep_single(plan, budget)
        return next(iter(self._fitting(budget)), None)

    def least(self) -> Plan:
        """The plan with the fewest bytes of those tried."""
        return min(self.tried.values(), key=_size)

    def attempt(self, marks: frozenset[str]) -> Plan:
        """A plan with these marks."""
        if marks not in self.tried:
            cost = self.evaluate(marks)
            seconds = sum(one.seconds for one in self.work if one.name in cost.repeated)
            self.tried[marks] = Plan(marks, cost, seconds)
        return self.tried[marks]

    def _families(self) -> list[frozenset[str]]:
        """Plans by size of segments, and by what is cheap to compute again."""
        return [*self._by_segments(), *self._by_time()]

    def _by_segments(self) -> list[frozenset[str]]:
        total = sum(one.nbytes for one in self.work)
        found = {}
        for n in range(1, _SIZES + 1):
            places = cuts(self.work, int(total * _SHRINK**n))
            if places is None:
                break
            found[frozenset(one.name for one in outside(self.work, places))] = n
        narrow = narrows(self.work)
        for stride in _STRIDES:
            for places in (narrow[stride - 1 :: stride], [*narrow[::stride], len(self.work)]):
                found[frozenset(one.name for one in outside(self.work, places))] = stride
        return list(found)

    def _by_time(self) -> list[frozenset[str]]:
        able = sorted((one for one in self.work if one.can_repeat and one.nbytes), key=_dear)
        steps = [len(able) * n // _BOUNDS for n in range(1, _BOUNDS + 1)]
        return [frozenset(one.name for one in able[:count]) for count in steps]

    def _fitting(self, budget: int) -> list[Plan]:
        fits = [plan for plan in self.tried.values() if plan.cost.nbytes <= budget]
        return sorted(fits, key=lambda plan: (plan.seconds, plan.cost.nbytes))

    def _keep_dear(self, plan: Plan, budget: int) -> None:
        """Keep as many as fit of the outputs that take the most time a byte, by bisection."""
        dear = sorted(
            (one for one in self.work if one.name in plan.cost.repeated), key=_dear, reverse=True
        )
        fits, too_many = 0, len(dear) + 1
        while too_many - fits > 1:
            count = (fits + too_many) // 2
            kept = {one.name for one in dear[:count]}
            if self.attempt(plan.marks - kept).cost.nbytes <= budget:
                fits = count
            else:
                too_many = count

    def _squeeze(self, budget: int) -> None:
        """Keep or compute again one value more, the largest first, while that takes less memory."""
        plan = self.least()
        large = sorted((one for one in self.work if one.can_repeat), key=lambda one: -one.nbytes)
        for one in large[:_TOGGLED]:
            other = self.attempt(plan.marks ^ {one.name})
            if other.cost.nbytes < plan.cost.nbytes:
                plan = other
            if plan.cost.nbytes <= budget:
                return

    def _keep_single(self, plan: Plan, budget: int) -> None:
        """Keep one output more, again and again, those first that take the most time a byte."""
        repeated = [one for one in self.work if one.name in plan.cost.repeated]
        for one in sorted(repeated, key=_dear, reverse=True)[:_SINGLE]:
            more = self.attempt(plan.marks - {one.name})
            if more.cost.nbytes <= budget and more.seconds < plan.seconds:
                plan = more


def cuts(work: Sequence[Work], limit: int) -> list[int] | None:
    """Places to cut an order, each behind an operator, so that backward stays within a limit.

    Backward through what lies between two cuts has its outputs in memory, and what is alive across
    the cuts before; together they take at most ``limit`` bytes. What is kept in all is the least
    there is. ``None``: there are no such places. A pass over the segments that end at each place.
    """
    alive = np.array([0, *crossing(work)], dtype=np.int64)
    before = np.concatenate([[0], np.cumsum([one.nbytes for one in work], dtype=np.int64)])
    count = len(work)
    # The least that is kept up to each place, by the cut before it.
    kept = np.full(count + 1, _NEVER, dtype=np.int64)
    last = np.zeros(count + 1, dtype=np.int64)
    kept[0] = 0
    for end in range(1, count + 1):
        first = int(np.searchsorted(before, before[end] - limit))
        fits = kept[first:end] + (before[end] - before[first:end]) <= limit
        if not fits.any():
            continue
        start = first + int(np.argmin(np.where(fits, kept[first:end], _NEVER)))
        last[end] = start
        kept[end] = kept[start] + (alive[end] if end < count else 0)
    if kept[count] == _NEVER:
        return None
    places: list[int] = []
    at = int(last[count])
    while at:
        places.append(at)
        at = int(last[at])
    return places[::-1]


def narrows(work: Sequence[Work]) -> list[int]:
    """Places, each behind an operator, where less is alive than before and not more than after.

    Ends of residual blocks, for example. MXNet gives whole blocks of memory to values, and segments
    that are alike use each other's.
    """
    alive = [*crossing(work), _NEVER]
    return [at + 1 for at in range(1, len(work) - 1) if alive[at - 1] > alive[at] <= alive[at + 1]]


def crossing(work: Sequence[Work]) -> list[int]:
    """Bytes that are read behind each operator and were there before. Linear."""
    change = [0] * (len(work) + 1)
    for at, end in enumerate(_last_reads(work)):
        if end > at:
            change[at] += work[at].nbytes
            change[end] -= work[at].nbytes
    found, alive = [], 0
    for at in range(len(work)):
        alive += change[at]
        found.append(alive)
    return found


def outside(work: Sequence[Work], places: Sequence[int]) -> list[Work]:
    """What is computed again if what is alive across the cuts is kept.

    What comes behind the last cut is kept too: backward begins there.
    """
    if not places:
        return []
    ends = _last_reads(work)
    kept = set()
    for first, place in pairwise([0, *places]):
        # An older value alive here was alive across the cut before.
        kept |= {at for at in range(first, place) if ends[at] >= place}
    return [
        one
        for at, one in enumerate(work[: places[-1]])
        if at not in kept and one.can_repeat and one.nbytes
    ]


def _last_reads(work: Sequence[Work]) -> list[int]:
    """Where each operator's outputs are read last; -1: nowhere."""
    last = [-1] * len(work)
    for at, one in enumerate(work):
        for source in one.inputs:
            last[source] = at
    return last


def _dear(one: Work) -> float:
    """Seconds a byte."""
    return one.seconds / one.nbytes if one.nbytes else float("inf")


def _size(plan: Plan) -> tuple[int, int, list[str]]:
    """Bytes first; nothing measured, so that the same is found again."""
    return plan.cost.nbytes, len(plan.cost.repeated), sorted(plan.marks)
