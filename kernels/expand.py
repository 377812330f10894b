"""Rewrites of a spec on its way to code: row instructions spelled out, axes collapsed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphopt.errors import GraphoptError
from graphopt.kernels.instructions import INSTRUCTIONS, Kind
from graphopt.kernels.spec import Arg, KernelSpec, Operand
from graphopt.kernels.spec_builder import Builder


def expand(spec: KernelSpec) -> KernelSpec:
    """The spec with softmax and its like written as reductions and maps."""
    if all(INSTRUCTIONS[step.op].kind is not Kind.ROW for step in spec.body):
        return spec
    emit = Builder.like(spec)
    values: list[Arg] = [emit.input(operand) for operand in spec.inputs]
    for step in spec.body:
        args = [values[arg] if isinstance(arg, int) else arg for arg in step.args]
        values.append(_EXPANSIONS.get(step.op, _same)(emit, step.op, args))
    return emit.build([(values[r.value], r.operand) for r in spec.outputs])


def _same(emit: Builder, op: str, args: list[Arg]) -> Arg:
    return emit(op, *args)


def _softmax(emit: Builder, _op: str, args: list[Arg]) -> Arg:
    # Subtracting the maximum keeps exp in range; the sum is then between 1 and the row's length.
    raised = emit("exp", emit("sub", args[0], emit("reduce_max", args[0])))
    return emit("mul", raised, emit("recip", emit("reduce_sum", raised)))


def _log_softmax(emit: Builder, _op: str, args: list[Arg]) -> Arg:
    shifted = emit("sub", args[0], emit("reduce_max", args[0]))
    return emit("sub", shifted, emit("log", emit("reduce_sum", emit("exp", shifted))))


def _normalize(emit: Builder, _op: str, args: list[Arg]) -> Arg:
    # Two passes over a row that is in cache: one pass would lose the variance of a large mean.
    row, epsilon = args
    count = emit("extent")
    centred = emit("sub", row, emit("div", emit("reduce_sum", row), count))
    variance = emit("div", emit("reduce_sum", emit("square", centred)), count)
    return emit("mul", centred, emit("rsqrt", emit("add", variance, epsilon)))


_EXPANSIONS = {"softmax": _softmax, "log_softmax": _log_softmax, "normalize": _normalize}


@dataclass(frozen=True)
class Collapsed:
    """A spec in which neighbouring axes that all operands treat alike are one.

    Attributes:
        spec: over the groups; no operand has dimensions of extent 1.
        group: for every axis of the original spec, its group.
    """

    spec: KernelSpec
    group: tuple[int, ...]


def collapse(spec: KernelSpec) -> Collapsed:
    """Merge axes, so that loops are few and long and one kernel serves many ranks.

    Raises:
        GraphoptError: an operand covers some inner axes but not all, or some columns, which kernels
            cannot walk.
    """
    operands = [*spec.inputs, *(result.operand for result in spec.outputs)]
    covers = [operand.covers for operand in operands]
    group: list[int] = []
    end = spec.rank - spec.columns
    for axis in range(spec.rank):
        starts = axis in (0, end - spec.inner, end)
        alike = not starts and all((axis in c) == (axis - 1 in c) for c in covers)
        group.append(group[-1] if alike else (group[-1] + 1 if group else 0))
    rank = group[-1] + 1 if group else 0
    if spec.inner and group[end - spec.inner] != group[end - 1]:
        raise GraphoptError("an operand covers some of the axes that are reduced, but not all")
    if spec.columns and group[end] != rank - 1:
        raise GraphoptError("an operand covers some of the axes behind those that are reduced")
    mapped = [_collapsed_operand(operand, group) for operand in operands]
    inputs = tuple(mapped[: len(spec.inputs)])
    outputs = tuple(
        type(result)(result.value, operand)
        for result, operand in zip(spec.outputs, mapped[len(spec.inputs) :], strict=True)
    )
    inner, columns = min(spec.inner, 1), min(spec.columns, 1)
    merged = replace(spec, rank=rank, inner=inner, columns=columns, inputs=inputs, outputs=outputs)
    return Collapsed(merged, tuple(group))


def _collapsed_operand(operand: Operand, group: list[int]) -> Operand:
    axes = sorted({group[axis] for axis in operand.axes if axis is not None})
    return Operand(operand.dtype, tuple(axes))
