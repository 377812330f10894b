"""A kernel in stages: parts of a spec that are computed one after the other, each less work.

A recurrence computes kernels between multiplications of a matrix unit, which leaves vectors some
time each; what is more than that keeps the unit waiting (ADR 0020).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from graphopt.kernels.contract import prepared
from graphopt.kernels.instructions import INSTRUCTIONS
from graphopt.kernels.spec import Arg, KernelSpec, Operand
from graphopt.kernels.spec_builder import Builder

#: What a stage should cost, in additions: what vectors have time for during four multiplications of
#: tiles.
WANTED_COST = 45.0
#: Of writing a value and reading it in another stage.
_WAITING_COST = 4.0
#: Compilers make one instruction of a product and a sum, if both are in one stage; also where some
#: instructions let the product through.
_PRODUCTS = {"mul", "square"}
_LET_THROUGH = {"neg", "stop", "scale_gradient", "with_slope", "where"}


@dataclass(frozen=True)
class Stage:
    """A part of a kernel.

    Attributes:
        spec: what it computes.
        operands: for each of its own operands, inputs first, the number of the kernel's operand
            that it is; numbers behind those are of rows in which values wait for a later stage.
    """

    spec: KernelSpec
    operands: tuple[int, ...]


def stages(spec: KernelSpec) -> tuple[list[Stage], int]:
    """The stages of a kernel of pointwise instructions, and how many rows values wait in.

    They compute the same bits as the whole does.
    """
    cutting = _Cutting(prepared(spec))
    found = [cutting.stage(begin, end) for begin, end in pairwise(cutting.bounds())]
    return found, len(cutting.rows)


class _Cutting:
    def __init__(self, spec: KernelSpec) -> None:
        self.spec, self.first = spec, len(spec.inputs)
        self.end = self.first + len(spec.body)
        self.written = {r.value: self.first + place for place, r in enumerate(spec.outputs)}
        self.rows: dict[int, int] = {}  # where other values wait
        self.products: set[int] = set()
        self.last_use = dict.fromkeys(range(self.end), 0)
        for number, step in enumerate(spec.body, self.first):
            args = [arg for arg in step.args if isinstance(arg, int)]
            self.last_use.update(dict.fromkeys(args, number))
            lets_through = step.op in _LET_THROUGH and self.products.intersection(args)
            if step.op in _PRODUCTS or lets_through:
                self.products.add(number)

    def bounds(self) -> list[int]:
        """With which value each stage begins, and where the last one ends."""
        costs = [INSTRUCTIONS[step.op].cost for step in self.spec.body]
        before = dict(enumerate(accumulate(costs, initial=0.0), self.first))
        count = max(1, round(before[self.end] / WANTED_COST))
        found = [self.first]
        for stage in range(1, count):
            wanted = before[self.end] * stage / count
            places = {
                place: abs(before[place] - wanted) + self._waiting_cost(place)
                for place in range(found[-1] + 1, self.end)
                if self._can_end(place)
            }
            if places:
                found.append(min(places, key=places.__getitem__))
        return [*found, self.end]

    def _crossing(self, place: int) -> list[int]:
        """Values that are computed before `place` and read behind it."""
        return [number for number in range(self.first, place) if self.last_use[number] >= place]

    def _can_end(self, place: int) -> bool:
        return not self.products.intersection(self._crossing(place))

    def _waiting_cost(self, place: int) -> float:
        return _WAITING_COST * sum(n not in self.written for n in self._crossing(place))

    def stage(self, begin: int, end: int) -> Stage:
        """What computes the values from `begin` to `end`."""
        spec, inside = self.spec, range(begin, end)
        steps = spec.body[begin - self.first : end - self.first]
        whole = Operand(spec.dtype, tuple(range(spec.rank)))
        wanted = [
            (result.value, result.operand, self.first + place)
            for place, result in enumerate(spec.outputs)
            if result.value in inside or (result.value < self.first == begin)
        ]
        for number in inside:
            if self.last_use[number] >= end and number not in self.written:
                self.rows[number] = self.first + len(spec.outputs) + len(self.rows)
                wanted.append((number, whole, self.rows[number]))
        read = {arg for step in steps for arg in step.args if isinstance(arg, int)}
        read |= {value for value, _, _ in wanted}
        places = {n: self._place(n) for n in sorted(read) if n not in inside}
        emit = Builder(spec.dtype, spec.rank, 0, precise=spec.precise)
        values: dict[int, Arg] = {
            n: emit.input(spec.inputs[n] if n < self.first else whole) for n in places
        }
        for number, step in zip(inside, steps, strict=True):
            args = [values[arg] if isinstance(arg, int) else arg for arg in step.args]
            values[number] = emit(step.op, *args)
        made = emit.build([(values[value], operand) for value, operand, _ in wanted])
        return Stage(made, (*places.values(), *(place for _, _, place in wanted)))

    def _place(self, number: int) -> int:
        """Which operand has a value."""
        if number < self.first:
            return number
        return self.written.get(number) or self.rows[number]
