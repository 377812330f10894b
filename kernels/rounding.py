"""Which kernels have to compute a value alike wherever they compute it."""

from __future__ import annotations

from graphopt.kernels.spec import KernelSpec

_EXTREMES = frozenset({"reduce_max", "reduce_min"})


def rounds_alike(spec: KernelSpec) -> bool:
    """Whether no product may be fused into a sum: some loops would round where others do not.

    So it is where a row's largest or least element is looked for among computed ones, to compare
    them with it, for a mask or for a gradient, which goes to the elements that equal it. They are
    computed in one loop to find it and in another to compare, where none would be equal if their
    last bits differed. The maximum that a softmax subtracts in front of exp is compared with
    nothing.
    """
    numbers = range(len(spec.inputs), len(spec.inputs) + len(spec.body))
    return spec.precise or any(
        finds_among_computed(spec, number) and not _shifts(spec, number) for number in numbers
    )


def finds_among_computed(spec: KernelSpec, value: int) -> bool:
    """Whether a value is the largest or least of elements that the kernel computes."""
    if value < len(spec.inputs) or _op(spec, value) not in _EXTREMES:
        return False
    (elements,) = spec.body[value - len(spec.inputs)].args
    return isinstance(elements, int) and elements >= len(spec.inputs)


def _shifts(spec: KernelSpec, most: int) -> bool:
    """Whether a maximum is only subtracted, and what is left only raised or shifted."""
    shifted = _users(spec, {most})
    returned = {result.value for result in spec.outputs}
    if returned & {most, *shifted} or any(_op(spec, number) != "sub" for number in shifted):
        return False
    ends = {_op(spec, number) for number in _users(spec, shifted)}
    return ends <= {"exp", "exp_nonpositive", "sub"}


def _users(spec: KernelSpec, values: set[int]) -> set[int]:
    return {
        number
        for number, step in enumerate(spec.body, len(spec.inputs))
        if any(isinstance(arg, int) and arg in values for arg in step.args)
    }


def _op(spec: KernelSpec, number: int) -> str:
    return spec.body[number - len(spec.inputs)].op
