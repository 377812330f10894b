"""A KernelSpec without what nothing reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from graphopt.kernels.spec import Instruction, KernelSpec, Result


def prune(spec: KernelSpec) -> KernelSpec:
    """The spec without instructions that no output needs; inputs keep their places."""
    first = len(spec.inputs)
    needed = {result.value for result in spec.outputs}
    for number in range(first + len(spec.body) - 1, first - 1, -1):
        if number in needed:
            args = spec.body[number - first].args
            needed.update(arg for arg in args if isinstance(arg, int))
    keep = [n for n in range(first, first + len(spec.body)) if n in needed]
    if len(keep) == len(spec.body):
        return spec
    renumber = {n: n for n in range(first)} | {n: first + i for i, n in enumerate(keep)}
    body = tuple(_renumbered(spec.body[n - first], renumber) for n in keep)
    outputs = tuple(Result(renumber[r.value], r.operand) for r in spec.outputs)
    return replace(spec, body=body, outputs=outputs)


def used_inputs(spec: KernelSpec) -> list[int]:
    """Inputs that an instruction or an output reads."""
    read = {arg for step in spec.body for arg in step.args if isinstance(arg, int)}
    read |= {result.value for result in spec.outputs}
    return [number for number in range(len(spec.inputs)) if number in read]


def without_unused_inputs(
    spec: KernelSpec, spare: Iterable[int] = ()
) -> tuple[KernelSpec, list[int]]:
    """The spec without inputs that nothing reads, and which inputs are left.

    Args:
        spec: a kernel.
        spare: inputs that stay unread where nothing else tells the extent of an axis, the first
            of them that do.
    """
    keep = _telling_inputs(spec, spare)
    first = len(spec.inputs)
    if len(keep) == first:
        return spec, keep
    renumber = {n: i for i, n in enumerate(keep)}
    renumber |= {n: n - first + len(keep) for n in range(first, first + len(spec.body))}
    inputs = tuple(spec.inputs[n] for n in keep)
    body = tuple(_renumbered(step, renumber) for step in spec.body)
    outputs = tuple(Result(renumber[r.value], r.operand) for r in spec.outputs)
    return replace(spec, inputs=inputs, body=body, outputs=outputs), keep


def _telling_inputs(spec: KernelSpec, spare: Iterable[int]) -> list[int]:
    """Inputs that are read, and those of the spare ones that alone tell the extent of an axis."""
    keep = used_inputs(spec)
    operands = [*(spec.inputs[n] for n in keep), *(result.operand for result in spec.outputs)]
    told = frozenset[int]().union(*(operand.covers for operand in operands))
    for number in spare:
        if not spec.inputs[number].covers <= told:
            keep.append(number)
            told |= spec.inputs[number].covers
    return sorted(keep)


def _renumbered(step: Instruction, renumber: dict[int, int]) -> Instruction:
    args = tuple(renumber[arg] if isinstance(arg, int) else arg for arg in step.args)
    return Instruction(step.op, args)
