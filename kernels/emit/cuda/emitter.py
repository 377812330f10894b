"""What the forms of CUDA kernels share: operands, expressions, in ``width`` copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from graphopt.kernels.emit.schedule import Loop
from graphopt.kernels.emit.source import INFIX, expression
from graphopt.kernels.rounding import rounds_alike
from graphopt.kernels.spec import Arg, KernelSpec


def is_flat(spec: KernelSpec) -> bool:
    """Whether no element of a collapsed spec depends on another."""
    return not spec.inner and not any(spec.summed(result) for result in spec.outputs)


def parts(spec: KernelSpec, place: int) -> tuple[bool, bool]:
    """Whether output ``place``, summed over, has a part for each slot, and for each segment."""
    result = spec.outputs[place]
    row_axis = spec.rank - 1
    return bool(spec.summed(result) - {row_axis}), row_axis not in result.operand.covers


def in_registers(spec: KernelSpec, place: int, chunks: int) -> bool:
    """Whether a team writes its part of a summed output once, or adds to it in every row."""
    result = spec.outputs[place]
    row_axis = spec.rank - 1
    return result.operand.covers <= {row_axis} and (
        row_axis not in result.operand.covers or chunks > 0
    )


@dataclass(frozen=True)
class Form:
    """How a kernel walks its rows. Of a flat kernel only the width matters.

    Attributes:
        width: elements read and written at once; it divides the last extent.
        chunks: how many times ``width`` elements of a row each thread keeps; 0 for rows of any
            length.
        block: whether teams are blocks, or else warps.
        full: whether all threads of all teams have all of their chunks.
        short: whether places of elements take less than 32 bits, which divide faster.
    """

    width: int = 1
    chunks: int = 0
    block: bool = False
    full: bool = False
    short: bool = False


class Emitter:
    """What both forms share: values in ``width`` copies, operands, expressions."""

    def __init__(self, spec: KernelSpec, form: Form) -> None:
        self.spec, self.width = spec, form.width
        self.unfused = rounds_alike(spec)
        self.quotient = "short_quotient" if form.short else "quotient"
        self.first = len(spec.inputs)
        self.row_axis = spec.row_axis
        self.operands = [*spec.inputs, *(result.operand for result in spec.outputs)]
        self.along = [self.row_axis in axes for axes in spec.varies]
        self.literals: dict[str, str] = {}
        self.lines: list[str] = []

    def _line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def _assembled(self, extra: Iterable[str], write: Callable[[], None]) -> str:
        names = [f"p{n}" for n in range(len(self.operands))]
        names += [f"e{axis}" for axis in range(self.spec.rank)]
        write()
        literals = [f"    {name} = number({text})" for text, name in self.literals.items()]
        return "\n".join(
            [f"def kernel({', '.join([*names, *extra])}):", *literals, *self.lines, ""]
        )

    def _arg(self, arg: Arg, suffix: str = "") -> str:
        if isinstance(arg, int):
            return f"v{arg}{suffix}" if self.along[arg] else f"v{arg}"
        # By their text: 0.0 and -0.0 are equal.
        return self.literals.setdefault(repr(float(arg)), f"c{len(self.literals)}")

    def _expression(self, op: str, args: list[str]) -> str:
        if op in INFIX and (op == "div" or not self.unfused):
            return f"{args[0]} {INFIX[op]} {args[1]}"
        if op == "square":
            return self._expression("mul", [args[0], args[0]])
        return expression(op, args)

    def _compute(self, indent: int, number: int, suffixes: Iterable[str]) -> None:
        """An instruction, once for each element."""
        step = self.spec.body[number - self.first]
        for suffix in suffixes if self.along[number] else [""]:
            args = [self._arg(arg, suffix) for arg in step.args]
            self._line(indent, f"v{number}{suffix} = {self._expression(step.op, args)}")

    def _load(self, indent: int, number: int, at: str, names: list[str]) -> None:
        """Read one element, or as many as there are names."""
        if len(names) == 1:
            self._line(indent, f"{names[0]} = load{number}(p{number}, {at})")
        else:
            self._line(indent, f"{', '.join(names)} = loads{number}(p{number}, {at})")

    def _store(self, indent: int, place: int, at: str, values: list[str]) -> None:
        number = self.first + place
        name = "store" if len(values) == 1 else "stores"
        self._line(indent, f"{name}{number}(p{number}, {at}, {', '.join(values)})")

    def _split(self, indent: int, index: str, axes: int) -> None:
        """``x0, x1, ...``: the coordinates along the first axes of an index into all of them."""
        rest = index
        for axis in range(axes - 1, 0, -1):
            self._line(indent, f"q{axis} = {self.quotient}({rest}, e{axis})")
            self._line(indent, f"x{axis} = {rest} - q{axis} * e{axis}")
            rest = f"q{axis}"
        if axes:
            self._line(indent, f"x0 = {rest}")

    def _offset(self, number: int, axes: int) -> str:
        """Where an operand is at coordinates ``x`` along the first axes, 0 along the others."""
        text = "0"
        for axis in sorted(self.operands[number].covers):
            if axis < axes:
                text = f"x{axis}" if text == "0" else f"({text} * e{axis} + x{axis})"
            elif text != "0":
                text = f"({text} * e{axis})"
        return text

    def _needs(self, targets: Iterable[int], *, elements: bool) -> list[int]:
        """What has to be known for ``targets``, operands first; ``elements`` of a row, or all."""
        found: set[int] = set()
        pending = list(targets)
        while pending:
            number = pending.pop()
            if number in found or (elements and not self.along[number]):
                continue
            found.add(number)
            if number >= self.first:
                args = self.spec.body[number - self.first].args
                pending += [a for a in args if isinstance(a, int)]
        return sorted(found)

    def _row_values(self, indent: int, values: Iterable[int]) -> None:
        """Values that a row has one of."""
        for number in values:
            if number < self.first:
                self._load(indent, number, f"at{number}", [f"v{number}"])
            else:
                self._compute(indent, number, [""])

    def _targets(self, loop: Loop) -> list[int]:
        """What a walk along a row needs the elements of."""
        sources = [self.spec.body[number - self.first].args[0] for number in loop.reductions]
        outputs = [self.spec.outputs[place].value for place in (*loop.stores, *loop.sums)]
        return [*(s for s in sources if isinstance(s, int)), *outputs]
