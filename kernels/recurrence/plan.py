"""What forward and backward of a recurrence agree on: where values lie, and what is kept.

What costs less to compute again than to write and read back is not stashed: gates are, the tanh of
an LSTM's cell is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from graphopt.kernels.gradient import Gradient, differentiate
from graphopt.kernels.instructions import INSTRUCTIONS, Kind
from graphopt.kernels.recurrence.program import (
    CARRY_IN,
    FIXED,
    IN_SEQUENCE,
    IN_STASH,
    NEXT,
    PING_PONG,
    SEQUENCE,
    STASH,
    View,
)
from graphopt.kernels.recurrence.spec import Map, Product, RecurrenceSpec
from graphopt.kernels.spec import KernelSpec, Operand, Result

#: Writing an element to memory and reading it back, in the unit of instruction costs.
_STASH_COST = 20.0
#: A value that costs less than this is not worth an output of its own.
_DEAR = 8.0


@dataclass(frozen=True)
class Plan:
    """What forward and backward of one recurrence agree on.

    Attributes:
        maps: for each kernel step, by the number of its first value: the forward kernel, which may
            have more outputs than the step has values, and the gradient, or ``None``.
        homes: of each state, as in :class:`Program`.
        value_at: where each value lies after a training step; scratch buffers are left out.
        extra_at: columns of the stash for the further outputs of a kernel step.
        stash_width: columns of the stash.
        stash_unit: columns of each value in it if all are equally wide and steps have no products,
            else ``stash_width``. Where sequences are equally long, a step's rows of so many columns
            lie together.
        reads_outputs: whether backward reads the emitted sequences.
    """

    maps: dict[int, tuple[KernelSpec, Gradient | None]]
    homes: tuple[tuple[int, int, int, int], ...]
    value_at: dict[int, View]
    extra_at: dict[int, tuple[int, ...]]
    stash_width: int
    stash_unit: int

    @property
    def reads_outputs(self) -> bool:
        """Whether a state is kept in an emitted sequence, which backward then reads."""
        return any(home[1] == IN_SEQUENCE for home in self.homes)


@lru_cache(maxsize=256)
def plan(spec: RecurrenceSpec, *, training: bool) -> Plan:
    """Decide where values lie, and what is kept for backward.

    Args:
        spec: the recurrence.
        training: there will be a backward.
    """
    maps: dict[int, tuple[KernelSpec, Gradient | None]] = {}
    for first, step in spec.numbered():
        if isinstance(step, Map):
            maps[first] = _with_gradient(spec, step, first) if training else (step.kernel, None)
    kept = _kept(spec, maps) if training else set()
    stash = 0
    stashed: set[int] = set()  # columns of values
    value_at: dict[int, View] = {}
    homes: list[tuple[int, int, int, int]] = []
    for number, ref in enumerate(spec.next):
        width = spec.states[number]
        if ref == spec.whole("s", number):
            homes.append((width, FIXED, 0, 0))
            continue
        emitted = [k for k, other in enumerate(spec.emit) if other == ref]
        is_value = ref.kind == "t" and ref == spec.whole("t", ref.index)
        if emitted and is_value:
            homes.append((width, IN_SEQUENCE, len(spec.sequences) + emitted[0], 0))
        elif training:
            homes.append((width, IN_STASH, 0, stash))
            stash += width
            stashed.add(width)
        else:
            homes.append((width, PING_PONG, 0, 0))
        if is_value:
            value_at.setdefault(ref.index, (NEXT, number, 0))
    for k, ref in enumerate(spec.emit):
        if ref.kind == "t" and ref == spec.whole("t", ref.index) and ref.index not in kept:
            value_at.setdefault(ref.index, (SEQUENCE, len(spec.sequences) + k, 0))
    for number in sorted(kept - value_at.keys()):
        value_at[number] = (STASH, 0, stash)
        stash += spec.values[number]
        stashed.add(spec.values[number])
    extra_at = {}
    for first, (kernel, _) in maps.items():
        places = []
        for result in kernel.outputs[_own(spec, first) :]:
            places.append(stash)
            width = _columns(spec, first, result.operand)
            stash += width
            stashed.add(width)
        extra_at[first] = tuple(places)
    multiplies = any(isinstance(step, Product) for _, step in spec.numbered())
    unit = stash if multiplies or len(stashed) > 1 else max(stashed, default=0)
    return Plan(maps, tuple(homes), value_at, extra_at, stash, unit)


def _own(spec: RecurrenceSpec, first: int) -> int:
    """How many values the step has whose first value is ``first``."""
    return next(len(step.widths) for number, step in spec.numbered() if number == first)


def _columns(spec: RecurrenceSpec, first: int, operand: Operand) -> int:
    step = next(step for number, step in spec.numbered() if number == first)
    assert isinstance(step, Map)
    return step.width if 1 in operand.covers else 1


def _kept(spec: RecurrenceSpec, maps: dict[int, tuple[KernelSpec, Gradient | None]]) -> set[int]:
    """Values that backward reads: operands of products, and what gradients ask for."""
    kept = set()
    for first, step in spec.numbered():
        if isinstance(step, Product):
            kept |= {ref.index for ref in step.sources if ref.kind == "t"}
            continue
        gradient = maps[first][1]
        if gradient is None:
            continue
        read = [step.sources[n] for n in gradient.inputs]
        kept |= {ref.index for ref in read if ref.kind == "t"}
        kept |= {first + n for n in _real_outputs(spec, step, first, gradient.outputs)}
    return kept


def _real_outputs(spec: RecurrenceSpec, step: Map, first: int, outputs: Sequence[int]) -> list[int]:
    """Of outputs of the differentiated kernel, which are values of the step."""
    copies = copies_of(spec, step, first)
    return [copies[n] for n in outputs if n < len(copies)]


def heads_of(spec: RecurrenceSpec, value: int) -> list[View]:
    """Gradients that reach a value as a whole from outside of the step."""
    whole = spec.whole("t", value)
    found = [(CARRY_IN, i, 0) for i, ref in enumerate(spec.next) if ref == whole]
    # The number of the array is filled in by the program.
    return found + [(SEQUENCE, -1 - k, 0) for k, ref in enumerate(spec.emit) if ref == whole]


def is_read(spec: RecurrenceSpec, value: int) -> bool:
    """Whether another step reads a value, or only part of it leaves the step."""
    whole = spec.whole("t", value)
    refs = [ref for _, step in spec.numbered() for ref in step.sources]
    refs += [ref for ref in (*spec.next, *spec.emit) if ref != whole]
    return any(ref.key == ("t", value) for ref in refs)


def copies_of(spec: RecurrenceSpec, step: Map, first: int) -> list[int]:
    """For each head of the step's gradient, the output it belongs to.

    A value with several readers outside has as many heads: the kernel adds them up.
    """
    found = []
    for n in range(len(step.widths)):
        count = len(heads_of(spec, first + n)) + int(is_read(spec, first + n))
        found += [n] * count
    return found


def _with_gradient(
    spec: RecurrenceSpec, step: Map, first: int
) -> tuple[KernelSpec, Gradient | None]:
    """The forward kernel with what it has to keep as further outputs, and its gradient."""
    kernel = step.kernel
    dear = [
        number
        for number, found in enumerate(kernel.body, len(kernel.inputs))
        if INSTRUCTIONS[found.op].cost >= _DEAR
        and INSTRUCTIONS[found.op].kind is not Kind.ROW
        and kernel.varies[number] == frozenset({0, 1})
        and all(number != result.value for result in kernel.outputs)
    ]
    extras = [Result(number, Operand(spec.dtype, (0, 1))) for number in dear]
    copies = copies_of(spec, step, first)
    if not copies:
        return kernel, None
    heads = [kernel.outputs[n] for n in copies]
    full = replace(kernel, outputs=(*heads, *extras))
    gradient = differentiate(full, len(heads), _STASH_COST)
    if gradient.spec is None:
        return kernel, None
    read = [n - len(heads) for n in gradient.outputs if n >= len(heads)]
    # Only extras that are read become outputs.
    renumber = {len(heads) + old: len(heads) + new for new, old in enumerate(read)}
    outputs = tuple(renumber.get(n, n) for n in gradient.outputs)
    forward = replace(kernel, outputs=(*kernel.outputs, *(extras[n] for n in read)))
    return forward, replace(gradient, outputs=outputs)
