"""Instructions that are less work together: a rewrite of specs on their way to code for CPUs."""

from __future__ import annotations

from collections import Counter

from graphopt.kernels.expand import collapse, expand
from graphopt.kernels.spec import Arg, Builder, Instruction, KernelSpec


def prepared(spec: KernelSpec) -> KernelSpec:
    """What is compiled for CPUs, and so what plans of memory have to go by."""
    return contract(collapse(expand(spec)).spec)


def contract(spec: KernelSpec) -> KernelSpec:
    """The spec with some functions and what follows them in one instruction.

    That is 1 + erf(x) in float32, as in GELU, and sigmoid(x) * tanh(y), as in LSTMs, where these
    have no other use. Not where a spec is to be precise, as less is rounded in between. Linear.
    """
    if spec.precise:
        return spec
    found = _Contractions(spec)
    if not found.known:
        return spec
    emit = Builder.like(spec)
    values: list[Arg] = [emit.input(operand) for operand in spec.inputs]
    for number, step in enumerate(spec.body, len(spec.inputs)):
        step = found.known.get(number, step)
        args = [values[arg] if isinstance(arg, int) else arg for arg in step.args]
        values.append(emit(step.op, *args))
    return emit.build([(values[r.value], r.operand) for r in spec.outputs])


class _Contractions:
    """What stands for the instructions of some values."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec, self.known = spec, dict[int, Instruction]()
        self.uses = Counter(arg for step in spec.body for arg in step.args if isinstance(arg, int))
        self.uses.update(result.value for result in spec.outputs)
        for number, step in enumerate(spec.body, len(spec.inputs)):
            for terms in (step.args, step.args[::-1]):
                made = self._of(step.op, terms)
                if made is not None:
                    self.known[number] = made

    def _of(self, op: str, terms: tuple[Arg, ...]) -> Instruction | None:
        if op == "add" and self.spec.dtype == "float32" and repr(terms[0]) == "1.0":
            erf = self._argument(terms[1], "erf")
            return None if erf is None else Instruction("one_plus_erf", (erf,))
        if op == "mul":
            gate, bent = self._argument(terms[0], "sigmoid"), self._argument(terms[1], "tanh")
            if gate is not None and bent is not None:
                return Instruction("sigmoid_times_tanh", (gate, bent))
        return None

    def _argument(self, value: Arg, op: str) -> int | None:
        """The value that a function was applied to, if it gave this, and for one use."""
        number = value - len(self.spec.inputs) if isinstance(value, int) else -1
        if number < 0 or self.spec.body[number].op != op or self.uses[int(value)] > 1:
            return None
        (argument,) = self.spec.body[number].args
        return argument if isinstance(argument, int) else None
