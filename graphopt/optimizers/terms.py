"""Formulas of kernels, written as Python expressions."""

from __future__ import annotations

from typing import Any

from graphopt.kernels.spec import Arg
from graphopt.kernels.spec_builder import Builder


class Term:
    """A value of a kernel that is being built; sums and products of it are more of them."""

    def __init__(self, builder: Builder, value: Arg) -> None:
        """``value``: its number there, or a literal."""
        self._builder, self.value = builder, value

    def __add__(self, other: Term | float) -> Term:
        return self._of("add", self, other)

    def __sub__(self, other: Term | float) -> Term:
        return self._of("sub", self, other)

    def __rsub__(self, other: float) -> Term:
        return self._of("sub", other, self)

    def __mul__(self, other: Term | float) -> Term:
        return self._of("mul", self, other)

    def __truediv__(self, other: Term | float) -> Term:
        return self._of("div", self, other)

    def __neg__(self) -> Term:
        return self._of("neg", self)

    def sqrt(self) -> Term:
        """Its square root."""
        return self._of("sqrt", self)

    def sign(self) -> Term:
        """-1, 0 or 1; of a NaN, 0."""
        negative = self._of("where", self._of("lt", self, 0.0), -1.0, 0.0)
        return self._of("where", self._of("gt", self, 0.0), 1.0, negative)

    def abs(self) -> Term:
        """Without its sign."""
        return self._of("abs", self)

    def or_larger(self, other: Term) -> Term:
        """The larger of both."""
        return self._of("max", self, other)

    def or_smaller(self, other: Term) -> Term:
        """The smaller of both."""
        return self._of("min", self, other)

    def if_larger(self, bound: Term | float, then: Term | float, otherwise: Term | float) -> Term:
        """One of two values: the first where it is above a bound; a NaN is not."""
        return self._of("where", self._of("gt", self, bound), then, otherwise)

    def clipped(self, bound: Term) -> Term:
        """Between ``-bound`` and ``bound``; a NaN stays one."""
        low = self._of("where", self._of("lt", self, -bound), -bound, self)
        return self._of("where", self._of("gt", self, bound), bound, low)

    def if_zero(self, then: Term | float, otherwise: Term | float) -> Term:
        """One of two values: the first where it is zero."""
        return self._of("where", self._of("eq", self, 0.0), then, otherwise)

    def _of(self, op: str, *args: Term | float) -> Term:
        values = (arg.value if isinstance(arg, Term) else float(arg) for arg in args)
        return Term(self._builder, self._builder(op, *values))


def clipped(x: Any, term: Term) -> Term:
    """Within the bound of gradients, if there is one; ``x`` has the numbers of an optimizer."""
    return term.clipped(x.clip_gradient) if hasattr(x, "clip_gradient") else term


def scaled(x: Any) -> Term:
    """The gradient of what is to be minimized."""
    return clipped(x, x.rescale_grad * x.grad)


def mean_of(share: Term, mean: Term, term: Term, rest: Term | None = None) -> Term:
    """A moving average."""
    return share * mean + (rest or 1 - share) * term
