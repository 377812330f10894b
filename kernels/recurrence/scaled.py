"""Products that are handed to kernels multiplied by a power of two.

A matrix unit that multiplies float16 wants numbers multiplied before they are split (see
kernels/bridge/tile_formats.h), and its sums divided again. Kernels that read sums do that for
nothing: a multiplication and the addition of a bias are one instruction.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from graphopt.kernels.recurrence.spec import Map, Product, RecurrenceSpec
from graphopt.kernels.spec import Arg, Instruction, KernelSpec


def read_by_kernels(spec: RecurrenceSpec, placed: Set[int]) -> frozenset[int]:
    """Values that are sums of products and that only kernels of the same step read.

    Args:
        spec: the recurrence.
        placed: values that outlive the step.
    """
    sums = {first for first, step in spec.numbered() if isinstance(step, Product)}
    others = [
        ref for _, step in spec.numbered() if isinstance(step, Product) for ref in step.sources
    ]
    others += [*spec.next, *spec.emit]
    return frozenset(sums - placed - {ref.index for ref in others if ref.kind == "t"})


def divided(step: Map, scaled: Set[int], kernel: KernelSpec, times: int) -> KernelSpec:
    """The kernel of a step whose inputs that are among ``scaled`` come multiplied by ``times``."""
    at = [n for n, ref in enumerate(step.sources) if ref.kind == "t" and ref.index in scaled]
    if times == 1 or not at:
        return kernel
    return _with_divisions(kernel, at, times)


def _with_divisions(kernel: KernelSpec, inputs: Sequence[int], times: int) -> KernelSpec:
    count = len(kernel.inputs)
    instead = {number: count + n for n, number in enumerate(inputs)}

    def moved(arg: Arg) -> Arg:
        if not isinstance(arg, int):
            return arg
        return instead.get(arg, arg) if arg < count else arg + len(inputs)

    divisions = [Instruction("mul", (number, 1.0 / times)) for number in inputs]
    body = [replace(one, args=tuple(map(moved, one.args))) for one in kernel.body]
    outputs = []
    for result in kernel.outputs:
        value = moved(result.value)
        assert isinstance(value, int)
        outputs.append(replace(result, value=value))
    return replace(kernel, body=(*divisions, *body), outputs=tuple(outputs))
