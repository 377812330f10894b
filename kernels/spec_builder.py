"""Making a KernelSpec, instruction by instruction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt.kernels.spec import Arg, Instruction, KernelSpec, Operand, Result
from graphopt.kernels.unused import prune


class Builder:
    """Collects instructions; equal ones become one value, trivial ones vanish."""

    def __init__(
        self, dtype: str, rank: int, inner: int, *, precise: bool = False, columns: int = 0
    ) -> None:
        """Begin an empty spec."""
        self.dtype, self.rank, self.inner, self.precise = dtype, rank, inner, precise
        self.columns = columns
        self._inputs: list[Operand] = []
        self._body: list[Instruction] = []
        self._known: dict[Instruction, Arg] = {}

    @classmethod
    def like(cls, spec: KernelSpec) -> Builder:
        """Begin an empty spec over the space of another one."""
        return cls(spec.dtype, spec.rank, spec.inner, precise=spec.precise, columns=spec.columns)

    def input(self, operand: Operand) -> int:
        """Append an input (before any instruction); returns its value."""
        if self._body:
            raise ValueError("inputs come before instructions")
        self._inputs.append(operand)
        return len(self._inputs) - 1

    def __call__(self, op: str, *args: Arg) -> Arg:
        """The value of an instruction."""
        trivial = _trivial(op, args)
        if trivial is not None:
            return trivial
        step = Instruction(op, tuple(args))
        if step not in self._known:
            self._body.append(step)
            self._known[step] = len(self._inputs) + len(self._body) - 1
        return self._known[step]

    def build(self, outputs: Iterable[tuple[Arg, Operand]]) -> KernelSpec:
        """The spec of what the outputs need; inputs all stay."""
        results = []
        for value, operand in outputs:
            number = value if isinstance(value, int) else self("literal", value)
            results.append(Result(int(number), operand))
        return prune(
            KernelSpec(
                self.dtype,
                self.rank,
                self.inner,
                tuple(self._inputs),
                tuple(self._body),
                tuple(results),
                self.precise,
                self.columns,
            )
        )


def _trivial(op: str, args: Sequence[Arg]) -> Arg | None:
    """What an instruction is equal to for all values, NaN and signed zeros included."""
    if op == "mul" and 1.0 in args[1:] and isinstance(args[1], float):
        return args[0]
    if op == "mul" and isinstance(args[0], float) and args[0] == 1.0:
        return args[1]
    if op == "div" and isinstance(args[1], float) and args[1] == 1.0:
        return args[0]
    if op == "sub" and repr(args[1]) == "0.0":  # not -0.0: that would turn -0.0 into 0.0
        return args[0]
    return None
