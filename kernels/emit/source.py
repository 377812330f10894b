"""What emitters of CPU kernels share: lines of Python, and how instructions are written in them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from graphopt.kernels.emit.schedule import Loop, Schedule
from graphopt.kernels.spec import Arg, KernelSpec

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
#: What reductions begin with.
START = {
    "reduce_sum": "0.0",
    "reduce_prod": "1.0",
    "reduce_max": "-inf",
    "reduce_max_number": "-inf",
    "reduce_min": "inf",
}


def expression(op: str, args: list[str]) -> str:
    """An instruction of some operands, but for the arithmetic that Python has signs for.

    A reduction gets here only if its operand is the same all along the row.
    """
    alike = {
        "extent": "length",
        "reduce_sum": f"{args[0]} * length" if args else "",
        "reduce_max": args[0] if args else "",
        "reduce_max_number": args[0] if args else "",
        "reduce_min": args[0] if args else "",
        "reduce_prod": f"pow_({args[0]}, length)" if args else "",
        "neg": f"-{args[0]}" if args else "",
        "stop": args[0] if args else "",
        "literal": args[0] if args else "",
        "scale_gradient": args[0] if args else "",
        "with_slope": args[0] if args else "",
        "loss_of": args[0] if args else "",
    }
    return alike.get(op) or f"{op}_({', '.join(args)})"


class Source(ABC):
    """Lines of a kernel, as they are written."""

    def __init__(self, spec: KernelSpec, plan: Schedule) -> None:
        """Of a spec that is expanded and collapsed, and its schedule."""
        self.spec, self.plan = spec, plan
        self.first = len(spec.inputs)
        self.row_axis = spec.row_axis
        self.literals: dict[str, str] = {}
        self.lines: list[str] = []

    def _capture(self, write: object) -> list[str]:
        before, self.lines = self.lines, []
        write()  # type: ignore[operator]
        found, self.lines = self.lines, before
        return found

    def _line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def _expression(self, op: str, args: list[str]) -> str:
        if op in INFIX:
            return f"{args[0]} {INFIX[op]} {args[1]}"
        return f"{args[0]} * {args[0]}" if op == "square" else expression(op, args)

    def _arg(self, arg: Arg) -> str:
        if isinstance(arg, int):
            return f"v{arg}"
        # By their text: 0.0 and -0.0 are equal.
        return self.literals.setdefault(repr(float(arg)), f"c{len(self.literals)}")

    def _walks(self) -> None:
        """All walks along rows, and what is computed before, between and after them."""
        for at, loop in enumerate(self.plan.loops):
            self._row_values(self.plan.before[at])
            self._loop(loop)
        for values in self.plan.before[len(self.plan.loops) :]:
            self._row_values(values)
        for place in self.plan.row_stores:
            self._store_row(place)

    @abstractmethod
    def _row_values(self, values: list[int]) -> None:
        """Values that rows have one of."""

    @abstractmethod
    def _loop(self, loop: Loop) -> None:
        """A walk along rows."""

    @abstractmethod
    def _store_row(self, place: int) -> None:
        """An output that rows have one of."""

    def _store(self, place: int, index: str, value: str, *, adds: bool, base: str = "at") -> str:
        number = self.first + place
        if adds:
            value = f"load{number}({base}{number}, {index}) + {value}"
        return f"store{number}({base}{number}, {index}, {value})"
