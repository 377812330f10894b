"""Instructions that are less work together: a rewrite of specs on their way to code for CPUs."""

from __future__ import annotations

from collections import defaultdict

from graphopt.kernels.expand import collapse, expand
from graphopt.kernels.spec import Arg, Instruction, KernelSpec
from graphopt.kernels.spec_builder import Builder


def prepared(spec: KernelSpec) -> KernelSpec:
    """What is compiled for CPUs, and so what plans of memory have to go by."""
    return contract(collapse(expand(spec)).spec)


def contract(spec: KernelSpec) -> KernelSpec:
    """The spec with some functions and what follows them in one instruction.

    That is 1 + erf(x) in float32, as in GELU, and sigmoid(x) * tanh(y), as in LSTMs, where these
    have no other use. Where exp(-x * x) is there, too, as in GELU's gradient, erf is made of it.
    In a softmax and its logarithm, exp is 0 where it would be subnormal, and the maximum need not
    care for NaN, which the sum of exps does. Not where a spec is to be precise, as less is rounded
    in between. Linear.
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
        if step.op == "one_plus_erf_by":
            # The power may stand behind it; the builder makes one of both.
            args.append(emit("exp_nonpositive", emit("neg", emit("square", args[0]))))
        values.append(emit(step.op, *args))
    return emit.build([(values[r.value], r.operand) for r in spec.outputs])


class _Contractions:
    """What stands for the instructions of some values."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec, self.known = spec, dict[int, Instruction]()
        self.users: dict[int, list[int]] = defaultdict(list)
        for number, step in enumerate(spec.body, len(spec.inputs)):
            for arg in step.args:
                if isinstance(arg, int):
                    self.users[arg].append(number)
        for result in spec.outputs:
            self.users[result.value].append(-1)
        self.powers = self._powers()
        for number, step in enumerate(spec.body, len(spec.inputs)):
            if step.op == "reduce_max":
                self._softmax(number)
            for terms in (step.args, step.args[::-1]):
                made = self._of(step.op, terms)
                if made is not None:
                    self.known[number] = made

    def _of(self, op: str, terms: tuple[Arg, ...]) -> Instruction | None:
        if op == "add" and self.spec.dtype == "float32" and repr(terms[0]) == "1.0":
            erf = self._argument(terms[1], "erf")
            if erf is None:
                return None
            if erf not in self.powers:
                return Instruction("one_plus_erf", (erf,))
            power = self.powers[erf]
            self.known[power] = Instruction("exp_nonpositive", self._step(power).args)
            return Instruction("one_plus_erf_by", (erf,))
        if op == "mul":
            gate, bent = self._argument(terms[0], "sigmoid"), self._argument(terms[1], "tanh")
            if gate is not None and bent is not None:
                return Instruction("sigmoid_times_tanh", (gate, bent))
        return None

    def _powers(self) -> dict[int, int]:
        """The value of exp(-x * x) for each x that there is one of."""
        found = {}
        for number, step in enumerate(self.spec.body, len(self.spec.inputs)):
            if step.op == "exp":
                square = self._operand(self._operand(step.args[0], "neg"), "square")
                if square is not None:
                    found[square] = number
        return found

    def _softmax(self, most: int) -> None:
        """Rewrite the maximum and exp if nothing but a softmax, or its logarithm, is made of them.

        Both are NaN all over a row with a NaN, by the sum of exps.
        """
        shifted = self._only_user(most, "sub")
        if shifted is None or self._step(shifted).args != (*self._step(most).args, most):
            return
        users = self.users[shifted]
        raised = next((user for user in users if self._is(user, "exp")), None)
        if raised is None:
            return
        total = next((user for user in self.users[raised] if self._is(user, "reduce_sum")), None)
        if total is None:
            return
        scale = self._only_user(total, "recip")
        logarithm = self._only_user(total, "log")
        ends = {*users, *self.users[raised]} - {raised, total}
        if len(ends) == 1:
            (end,) = ends
            if end >= 0 and self._step(end) in (
                Instruction("mul", (raised, -1 if scale is None else scale)),
                Instruction("sub", (shifted, -1 if logarithm is None else logarithm)),
            ):
                self.known[most] = Instruction("reduce_max_number", self._step(most).args)
                self.known[raised] = Instruction("exp_nonpositive", (shifted,))

    def _step(self, number: int) -> Instruction:
        return self.spec.body[number - len(self.spec.inputs)]

    def _is(self, number: int, op: str) -> bool:
        return number >= len(self.spec.inputs) and self._step(number).op == op

    def _only_user(self, number: int, op: str) -> int | None:
        """The only value made of another one, if it is made by ``op``."""
        users = self.users[number]
        return users[0] if len(users) == 1 and self._is(users[0], op) else None

    def _operand(self, value: Arg | None, op: str) -> int | None:
        """The value that a function was applied to, if it gave this."""
        if not isinstance(value, int) or not self._is(value, op):
            return None
        (argument,) = self._step(value).args
        return argument if isinstance(argument, int) else None

    def _argument(self, value: Arg, op: str) -> int | None:
        """The same, where this has one use."""
        found = self._operand(value, op)
        return found if found is not None and len(self.users[int(value)]) == 1 else None
