"""What the bridge has to know of a spec, as numbers.

In order: inputs, outputs, axes, groups of axes, whether rows must stay whole, bytes of the compute
dtype, picoseconds an element, scratch rows, whether there are columns, values that wait in memory
for each of these; the group of each axis, that of columns before that of rows; for every operand,
inputs first: MXNet's type code, whether it is summed over, the source and index (of backward
operands), dimensions, and the axis of each, -1 for one of extent 1; and how many pairs of an input
and an output may be one array, and the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from graphopt.ir.types import DTYPES
from graphopt.kernels.contract import prepared
from graphopt.kernels.emit.columns import emit_columns
from graphopt.kernels.emit.inplace import overwritable
from graphopt.kernels.emit.schedule import schedule
from graphopt.kernels.expand import Collapsed, collapse, expand
from graphopt.kernels.gradient import Gradient, differentiate
from graphopt.kernels.instructions import INSTRUCTIONS
from graphopt.kernels.spec import KernelSpec, Operand
from graphopt.kernels.spec_parser import parse

HEAD, INPUT, OUTPUT = 0, 1, 2

#: Of one element: a unit of instruction cost, and a read or write, on one core.
_PS_PER_COST = 15
_PS_PER_OPERAND = 150


def forward_plan(spec: KernelSpec) -> list[int]:
    """The numbers of the forward kernel."""
    inputs = [(INPUT, n) for n in range(len(spec.inputs))]
    return _numbers(spec, inputs, list(range(len(spec.outputs))))


def backward_plan(spec: KernelSpec) -> list[int]:
    """The numbers of the kernel of the gradients of ``spec``."""
    gradient = differentiate(spec)
    if gradient.spec is None:
        return [0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0]
    return _numbers(gradient.spec, sources(gradient), list(gradient.wrt))


@lru_cache(maxsize=4096)
def inplace_pairs(text: str, *, backward: bool) -> tuple[tuple[int, int], ...]:
    """Which inputs and outputs of the node of a kernel MXNet may give one array.

    Args:
        text: a spec.
        backward: of the node that computes its gradients, which has one output for each of its
            inputs.
    """
    spec, wrt = parse(text), None
    if backward:
        gradient = differentiate(spec)
        if gradient.spec is None:
            return ()
        spec, wrt = gradient.spec, gradient.wrt
    pairs = _overwritable(spec)
    return tuple((read, wrt[written] if wrt else written) for read, written in pairs)


def _overwritable(spec: KernelSpec) -> list[tuple[int, int]]:
    """Pairs of an input and an output that may be one array, on CPUs and on GPUs."""
    on_gpus = overwritable(collapse(expand(spec)).spec, keeps=False)
    return [pair for pair in overwritable(prepared(spec)) if pair in on_gpus]


def sources(gradient: Gradient) -> list[tuple[int, int]]:
    """What each input of a backward kernel is: head gradient, forward input, or forward output."""
    return [
        *((HEAD, n) for n in gradient.heads),
        *((INPUT, n) for n in gradient.inputs),
        *((OUTPUT, n) for n in gradient.outputs),
    ]


def picoseconds(spec: KernelSpec) -> int:
    """A rough cost of one element of the iteration space."""
    work = sum(INSTRUCTIONS[step.op].cost for step in expand(spec).body)
    operands = len(spec.inputs) + len(spec.outputs)
    return int(_PS_PER_COST * work + _PS_PER_OPERAND * operands)


def _numbers(
    spec: KernelSpec, sources: Sequence[tuple[int, int]], targets: Sequence[int]
) -> list[int]:
    collapsed = collapse(spec)
    pairs = _overwritable(spec)
    item = DTYPES[spec.dtype][1]
    numbers = [
        len(spec.inputs),
        len(spec.outputs),
        spec.rank,
        collapsed.spec.rank,
        int(spec.inner > 0),
        item,
        picoseconds(spec),
        len(schedule(prepared(spec)).scratch),
        int(spec.columns > 0),
        len(emit_columns(prepared(spec))[1]) if spec.columns else 0,
        *_groups(spec, collapsed),
    ]
    for operand, (source, index) in zip(spec.inputs, sources, strict=True):
        numbers += _operand(operand, adds=False, source=source, index=index)
    for result, index in zip(spec.outputs, targets, strict=True):
        numbers += _operand(
            result.operand, adds=bool(spec.summed(result)), source=OUTPUT, index=index
        )
    return [*numbers, len(pairs), *(number for pair in pairs for number in pair)]


def _groups(spec: KernelSpec, collapsed: Collapsed) -> list[int]:
    """The group of each axis; that of the axes that rows run along is the last."""
    if not spec.columns:
        return list(collapsed.group)
    last = collapsed.spec.rank - 1
    return [{last: last - 1, last - 1: last}.get(group, group) for group in collapsed.group]


def _operand(operand: Operand, *, adds: bool, source: int, index: int) -> list[int]:
    axes = [-1 if axis is None else axis for axis in operand.axes]
    return [DTYPES[operand.dtype][2], int(adds), source, index, len(axes), *axes]
