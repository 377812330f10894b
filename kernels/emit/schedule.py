"""Which value of a kernel is computed in which loop over a row.

A row is walked several times when it holds reductions: loop 0 computes the first ones, loop 1 what
needs their results, and so on. A value that several loops need is computed in each of them, or, if
that costs more than memory, kept in a scratch row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from graphopt.kernels.instructions import INSTRUCTIONS, Kind
from graphopt.kernels.spec import KernelSpec, Result

#: Computing a value again that costs more than this is slower than reading it from the cache.
_KEEP_COST = 8.0


@dataclass
class Loop:
    """One walk along the row.

    Attributes:
        values: elements to compute, in order; inputs among them are loaded.
        reads: values to read from scratch rows instead.
        keeps: values to write to scratch rows.
        reductions: reductions it feeds.
        stores: outputs it writes element by element.
        sums: outputs that add up the row, whose sum it computes.
    """

    values: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    keeps: list[int] = field(default_factory=list)
    reductions: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)


@dataclass
class Schedule:
    """The order of work on one row.

    Attributes:
        before: for each loop, the values of the row to compute before it; the last entry is for
            what comes after all loops.
        loops: the walks.
        scratch: the scratch row of each value that is kept.
        row_stores: outputs with one element per row.
    """

    before: list[list[int]]
    loops: list[Loop]
    scratch: dict[int, int]
    row_stores: list[int]


def schedule(spec: KernelSpec, *, keeps: bool = True) -> Schedule:
    """Order the work of a collapsed, expanded spec; its last axis but columns is the row.

    Args:
        spec: a kernel.
        keeps: whether there are scratch rows; GPUs compute again what several loops need.
    """
    return _Scheduler(spec, keeps=keeps).run()


class _Scheduler:
    def __init__(self, spec: KernelSpec, *, keeps: bool) -> None:
        self.spec, self.keeps = spec, keeps
        self.first = len(spec.inputs)
        self.row_axis = spec.row_axis
        self.along = [self.row_axis in axes for axes in spec.varies]
        self.depth = self._depths()

    def run(self) -> Schedule:
        count = max((d for d in self.depth), default=0)
        targets: list[set[int]] = [set() for _ in range(count + 1)]
        loops = [Loop() for _ in range(count + 1)]
        row_stores = []
        for number, step in enumerate(self.spec.body, self.first):
            if self._reduces(number):
                at = self.depth[number] - 1
                (source,) = step.args
                assert isinstance(source, int)
                loops[at].reductions.append(number)
                targets[at].add(source)
        for place, result in enumerate(self.spec.outputs):
            at = self.depth[result.value]
            kind = self.store_kind(result)
            if kind == "row":
                row_stores.append(place)
                continue
            (loops[at].sums if kind == "sum" else loops[at].stores).append(place)
            targets[at].add(result.value)
        scratch = self._fill(loops, targets)
        before = self._row_values(loops, targets)
        while loops and not (loops[-1].values or loops[-1].stores or loops[-1].sums):
            loops.pop()
        before[len(loops) :] = [[v for part in before[len(loops) :] for v in part]]
        return Schedule(before, loops, scratch, row_stores)

    def store_kind(self, result: Result) -> str:
        """Whether an output is stored per element, per row, or as the sum of a row."""
        if self.row_axis in result.operand.covers:
            return "element"
        summed = self.row_axis in self.spec.summed(result)
        return "sum" if summed and self.along[result.value] else "row"

    def _reduces(self, number: int) -> bool:
        """Whether a value needs a loop: a reduction of something that varies along the row."""
        step = self.spec.body[number - self.first]
        return INSTRUCTIONS[step.op].kind is Kind.REDUCE and any(
            isinstance(arg, int) and self.along[arg] for arg in step.args
        )

    def _depths(self) -> list[int]:
        depth = [0] * self.first
        for number, step in enumerate(self.spec.body, self.first):
            deepest = max((depth[a] for a in step.args if isinstance(a, int)), default=0)
            depth.append(deepest + self._reduces(number))
        return depth

    def _needs(self, targets: Iterable[int], stop: set[int]) -> list[int]:
        """Elements to compute for ``targets``, operands first, none beyond those in ``stop``."""
        found: set[int] = set()
        pending = [t for t in targets if self.along[t]]
        while pending:
            number = pending.pop()
            if number in found:
                continue
            found.add(number)
            if number >= self.first and number not in stop:
                args = self.spec.body[number - self.first].args
                pending += [a for a in args if isinstance(a, int) and self.along[a]]
        return sorted(found)

    def _fill(self, loops: list[Loop], targets: list[set[int]]) -> dict[int, int]:
        scratch: dict[int, int] = {}
        computed: set[int] = set()
        for at, loop in enumerate(loops):
            needed = self._needs(targets[at], computed & set(scratch))
            loop.values = needed
            # Look ahead: which of these will a later loop compute again?
            for later in range(at + 1, len(loops)):
                again = set(self._needs(targets[later], set(scratch)))
                for number in needed:
                    if number in again and number not in scratch and self._worth(number, scratch):
                        scratch[number] = len(scratch)
                        loop.keeps.append(number)
                        again = set(self._needs(targets[later], set(scratch)))
            loop.reads = [n for n in needed if n in computed and n in scratch]
            loop.values = [n for n in needed if n not in loop.reads]
            computed |= set(needed)
        return scratch

    def _worth(self, number: int, kept: dict[int, int]) -> bool:
        if number < self.first or not self.keeps:
            return False
        total = 0.0
        for value in self._needs([number], set(kept)):
            if value >= self.first and value not in kept:
                total += INSTRUCTIONS[self.spec.body[value - self.first].op].cost
        return total >= _KEEP_COST and self._is_costliest(number)

    def _is_costliest(self, number: int) -> bool:
        """Whether the value is dear itself; cheap work on a dear value keeps that one instead."""
        return INSTRUCTIONS[self.spec.body[number - self.first].op].cost >= _KEEP_COST

    def _row_values(self, loops: list[Loop], targets: list[set[int]]) -> list[list[int]]:
        """Values with one element per row, by the loop they have to come before."""
        before: list[list[int]] = [[] for _ in range(len(loops) + 1)]
        for number in range(self.first + len(self.spec.body)):
            if not self.along[number] and not (number >= self.first and self._reduces(number)):
                before[self.depth[number]].append(number)
        return before
