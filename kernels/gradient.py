"""The kernel that computes the gradients of a kernel, by symbolic differentiation.

Reverse mode on the instructions: every value gets an adjoint, an expression of the head gradients
and of forward values. Forward values are computed again from the inputs, which costs less than
storing them, unless reading an output of the forward kernel costs less still.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from graphopt.errors import GraphoptError
from graphopt.kernels.instructions import INSTRUCTIONS, Kind
from graphopt.kernels.rounding import finds_among_computed
from graphopt.kernels.spec import Arg, Instruction, KernelSpec, Result
from graphopt.kernels.spec_builder import Builder
from graphopt.kernels.unused import prune, used_inputs, without_unused_inputs

#: What reading one element of a full-size array costs, in the unit of instruction costs.
_READ_COST = 3.0

_FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Gradient:
    """A backward kernel and what its operands are.

    Attributes:
        spec: ``None`` if no input has a gradient.
        heads: for each output of the forward kernel, whether its gradient is read (in order, they
            are the first inputs of ``spec``).
        inputs: forward inputs that are read, or that tell the extent of an axis, the next inputs
            of ``spec``.
        outputs: forward outputs, as well, the last inputs of ``spec``.
        wrt: forward inputs that get a gradient, one output of ``spec`` each.
    """

    spec: KernelSpec | None
    heads: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    wrt: tuple[int, ...]


def is_differentiable(spec: KernelSpec) -> bool:
    """Whether every instruction has a derivative."""
    return all(INSTRUCTIONS[step.op].gradient is not None for step in spec.body)


@lru_cache(maxsize=4096)
def differentiate(
    spec: KernelSpec, heads: int | None = None, read_cost: float = _READ_COST
) -> Gradient:
    """The kernel for the gradients of ``spec`` by its floating-point inputs.

    Args:
        spec: the forward kernel.
        heads: how many outputs, from the first, have a gradient; default: all. The others are there
            to be read.
        read_cost: of one element of an array, in the unit of instruction costs.

    Raises:
        GraphoptError: an instruction has no derivative.
    """
    for step in spec.body:
        if INSTRUCTIONS[step.op].gradient is None:
            raise GraphoptError(f"the kernel instruction {step.op} has no derivative")
    count, inputs = len(spec.outputs), len(spec.inputs)
    full = _backward(spec, count if heads is None else heads)
    if full is None:
        return Gradient(None, (), (), (), ())
    best, wrt = full
    for number, result in enumerate(spec.outputs):
        if finds_among_computed(spec, result.value):
            continue  # found in another kernel: elements computed here may differ in their last bit
        # Input positions: heads, forward inputs, forward outputs.
        other = _reading_output(spec, best, number)
        if _cost(other, read_cost) < _cost(best, read_cost):
            best = other
    # An axis that nothing runs along may be summed over all the same: gradients are as many times
    # what they are of one element.
    kept, places = without_unused_inputs(best, range(count, len(best.inputs)))
    return Gradient(
        kept,
        tuple(p for p in places if p < count),
        tuple(p - count for p in places if count <= p < count + inputs),
        tuple(p - count - inputs for p in places if p >= count + inputs),
        wrt,
    )


def _backward(spec: KernelSpec, with_head: int) -> tuple[KernelSpec, tuple[int, ...]] | None:
    """Gradients from heads, forward inputs and forward outputs, in this order of inputs."""
    emit = Builder.like(spec)
    heads = [emit.input(result.operand) for result in spec.outputs]
    values: list[Arg] = [emit.input(operand) for operand in spec.inputs]
    for result in spec.outputs:
        emit.input(result.operand)
    for step in spec.body:
        values.append(emit(step.op, *_mapped(step, values)))
    adjoints = _adjoints(spec, emit, heads[:with_head], values)
    wrt = [n for n, operand in enumerate(spec.inputs) if operand.dtype in _FLOATS]
    wrt = [n for n in wrt if adjoints[n] is not None]
    if not wrt:
        return None
    results = []
    for number in wrt:
        adjoint = adjoints[number]
        assert adjoint is not None
        results.append((adjoint, spec.inputs[number]))
    return emit.build(results), tuple(wrt)


def _adjoints(
    spec: KernelSpec, emit: Builder, heads: list[int], values: list[Arg]
) -> list[Arg | None]:
    """The adjoint of every value; ``None`` where it is zero."""
    is_row = [_is_row_level(spec, number) for number in range(len(values))]
    adjoints: list[Arg | None] = [None] * len(values)

    def add(number: Arg, contribution: Arg | None, from_row: bool) -> None:
        if contribution is None or not isinstance(number, int):
            return
        if is_row[number] and not from_row:
            contribution = emit("reduce_sum", contribution)
        before = adjoints[number]
        adjoints[number] = contribution if before is None else emit("add", before, contribution)

    for head, result in zip(heads, spec.outputs, strict=False):
        if result.operand.dtype in _FLOATS:
            has_inner = bool(result.operand.covers & spec.inner_axes) or not spec.inner
            if is_row[result.value] and has_inner:
                add(result.value, emit("reduce_sum", head), True)
            else:
                add(result.value, head, True)
    first = len(spec.inputs)
    rounded = _rounded(spec)
    for number in range(len(values) - 1, first - 1, -1):
        gradient = adjoints[number]
        if gradient is None:
            continue
        step = spec.body[number - first]
        info = INSTRUCTIONS[step.op]
        assert info.gradient is not None
        args = _mapped(step, values)
        made = values[rounded.get(number, number)]
        found = info.gradient(emit, args, made, gradient)
        # A reduction's adjoint is spread over the row: each element gets all of it.
        from_row = is_row[number] and info.kind is not Kind.REDUCE
        for arg, contribution in zip(step.args, found, strict=True):
            add(arg, contribution, from_row)
    return adjoints


def _rounded(spec: KernelSpec) -> dict[int, int]:
    """What values are once they are rounded to float16: where that overflows, so do gradients."""
    first = len(spec.inputs)
    return {
        step.args[0]: first + at
        for at, step in enumerate(spec.body)
        if step.op == "half" and isinstance(step.args[0], int)
    }


def _is_row_level(spec: KernelSpec, number: int) -> bool:
    """Whether a value has one element per row; inputs by what they cover."""
    return bool(spec.inner) and not spec.varies[number] & spec.inner_axes


def _mapped(step: Instruction, values: list[Arg]) -> list[Arg]:
    return [values[arg] if isinstance(arg, int) else arg for arg in step.args]


def _reading_output(forward: KernelSpec, backward: KernelSpec, number: int) -> KernelSpec:
    """The backward kernel with output ``number`` read instead of computed."""
    result = forward.outputs[number]
    heads, inputs = len(forward.outputs), len(forward.inputs)
    place = heads + inputs + number
    if (
        result.operand.dtype != forward.dtype
        or forward.varies[result.value] != result.operand.covers
    ):
        return backward  # stored rounded, or broadcast: not the value itself
    # The forward instructions were emitted first, in order, and equal ones merged.
    target = _find(forward, backward, result.value)
    if target is None or target < heads + inputs + heads:
        return backward
    replaced = tuple(
        Instruction(s.op, tuple(place if a == target and isinstance(a, int) else a for a in s.args))
        for s in backward.body
    )
    outputs = tuple(
        Result(place if r.value == target else r.value, r.operand) for r in backward.outputs
    )
    return prune(replace(backward, body=replaced, outputs=outputs))


def _find(forward: KernelSpec, backward: KernelSpec, value: int) -> int | None:
    """The value of the backward kernel that equals a value of the forward kernel."""
    heads, inputs = len(forward.outputs), len(forward.inputs)
    known: dict[Instruction, int] = {}
    offset = len(backward.inputs)
    for number, step in enumerate(backward.body):
        known.setdefault(step, offset + number)
    # What is read already is computed no more.
    read = {r.value: heads + inputs + n for n, r in enumerate(forward.outputs)}
    place: list[Arg | None] = [heads + n for n in range(inputs)]
    for number, step in enumerate(forward.body, inputs):
        args = [place[a] if isinstance(a, int) else a for a in step.args]
        found = None
        if all(a is not None for a in args):
            found = known.get(Instruction(step.op, tuple(a for a in args if a is not None)))
        if found is None and step.op == "with_slope" and isinstance(args[0], int):
            found = args[0]  # the same number
        place.append(read.get(number) if found is None and number != value else found)
    target = place[value]
    return target if isinstance(target, int) else None


def _cost(spec: KernelSpec, read_cost: float) -> float:
    """Of one element: reads of arrays that vary along the rows, and instructions on them."""
    space = frozenset(range(spec.rank))
    inner = spec.inner_axes or space
    reads = sum(spec.inputs[n].covers == space for n in used_inputs(spec))
    work = 0.0
    for number, step in enumerate(spec.body, len(spec.inputs)):
        touched = (spec.varies[a] for a in (number, *step.args) if isinstance(a, int))
        if any(axes & inner for axes in touched):
            work += INSTRUCTIONS[step.op].cost
    return work + read_cost * reads
