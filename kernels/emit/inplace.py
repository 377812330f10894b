"""Which outputs of a kernel may be written over which of its inputs.

MXNet's planner then gives both one array. An element has to be read for the last time before it is
written. Rows are independent, so that is a matter of one row: no later loop may read the input, and
in the loop that writes, what is written has to be computed from what is read there. Nothing else
keeps a compiler, which is told that outputs and inputs do not overlap, from reading after writing.
"""

from __future__ import annotations

from graphopt.kernels.emit.schedule import Loop, schedule
from graphopt.kernels.spec import KernelSpec


def overwritable(spec: KernelSpec, *, keeps: bool = True) -> list[tuple[int, int]]:
    """Pairs of an input and an output that may be one array, element upon element.

    Args:
        spec: expanded and collapsed (:mod:`graphopt.kernels.expand`).
        keeps: whether values that several loops need are kept, so that no later one reads what they
            are computed from (:func:`graphopt.kernels.emit.schedule.schedule`).
    """
    space = frozenset(range(spec.rank))
    found = []
    for at, loop in enumerate(loops := schedule(spec, keeps=keeps).loops):
        later = {number for after in loops[at + 1 :] for number in after.values}
        for place in loop.stores:
            result = spec.outputs[place]
            if result.operand.covers != space:
                continue
            sources = _sources(spec, loop, result.value)
            for number, operand in enumerate(spec.inputs):
                read_first = number not in loop.values or number in sources
                alike = operand.covers == space and operand.dtype == result.operand.dtype
                if alike and read_first and number not in later:
                    found.append((number, place))
    return sorted(found)


def _sources(spec: KernelSpec, loop: Loop, value: int) -> set[int]:
    """What a value is computed from within a loop, itself included."""
    found: set[int] = set()
    computed, pending = set(loop.values), [value]
    while pending:
        number = pending.pop()
        if number not in computed or number in found:
            continue
        found.add(number)
        if number >= len(spec.inputs):
            args = spec.body[number - len(spec.inputs)].args
            pending += [arg for arg in args if isinstance(arg, int)]
    return found
