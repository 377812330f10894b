"""What emitters of CPU kernels share: lines of Python, and how instructions are written in them."""

from __future__ import annotations

from graphopt.kernels.emit.schedule import Schedule
from graphopt.kernels.spec import Arg, KernelSpec

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
#: What reductions begin with.
START = {"reduce_sum": "0.0", "reduce_prod": "1.0", "reduce_max": "-inf", "reduce_min": "inf"}


class Source:
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
        if op in _INFIX:
            return f"{args[0]} {_INFIX[op]} {args[1]}"
        # A reduction gets here only if its operand is the same all along the row.
        alike = {
            "extent": "length",
            "reduce_sum": f"{args[0]} * length" if args else "",
            "reduce_max": args[0] if args else "",
            "reduce_min": args[0] if args else "",
            "reduce_prod": f"pow_({args[0]}, length)" if args else "",
            "neg": f"-{args[0]}" if args else "",
            "square": f"{args[0]} * {args[0]}" if args else "",
            "stop": args[0] if args else "",
            "literal": args[0] if args else "",
            "scale_gradient": args[0] if args else "",
        }
        return alike.get(op) or f"{op}_({', '.join(args)})"

    def _arg(self, arg: Arg) -> str:
        if isinstance(arg, int):
            return f"v{arg}"
        # By their text: 0.0 and -0.0 are equal.
        return self.literals.setdefault(repr(float(arg)), f"c{len(self.literals)}")

    def _store(self, place: int, index: str, value: str, *, adds: bool) -> str:
        number = self.first + place
        if adds:
            value = f"load{number}(at{number}, {index}) + {value}"
        return f"store{number}(at{number}, {index}, {value})"
