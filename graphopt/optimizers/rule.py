"""How an optimizer makes one weight new, and the kernels that do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from graphopt.kernels.spec import KernelSpec, Operand
from graphopt.kernels.spec_builder import Builder
from graphopt.optimizers.terms import Term

#: Makes values of one weight: what it is given has an attribute for each array and number.
Formula = Callable[[Any], Sequence[Term]]


@dataclass(frozen=True)
class Adaptation:
    """How the rate of each weight follows from norms, of itself and of what it moves by.

    Attributes:
        norms: values of each element, whose norms over the weight are taken.
        ratio: one number of these norms, ``x.norms``, and of the rule's numbers; the rule's
            formula has it as ``x.ratio``.
        states: what states become before norms are taken, if norms are of that; then the rule's
            formula reads new states, and makes the weight alone.
    """

    norms: Formula
    ratio: Callable[[Any], Term]
    states: Formula | None = None


@dataclass(frozen=True)
class Rule:
    """How an optimizer makes one weight new.

    Attributes:
        formula: of the weight and its states.
        states: names of these.
        shared: names of numbers of the optimizer that all weights share.
        own: names of numbers of each weight.
        rounds: whether MXNet takes numbers as float32 whatever the weight is.
        adapts: to which norms, if to any.
        in_order: whether own numbers of a weight follow from which ones were updated before it.
    """

    formula: Formula
    states: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    own: tuple[str, ...] = ("lr", "wd")
    rounds: bool = True
    adapts: Adaptation | None = None
    in_order: bool = False

    @property
    def arrays(self) -> int:
        """How many arrays a weight has: itself, its gradient and its states."""
        return 2 + len(self.states)

    def specs(self, dtype: str, *, precise: bool) -> tuple[KernelSpec | None, ...]:
        """The kernels over flat arrays, as ``kernels/bridge/update.h`` takes them.

        The first one reads weight, gradient, states, shared numbers and own numbers, and writes
        weight and states. Those behind it, of rates that adapt, write states, sum squares, and make
        the ratio.
        """
        return _specs(self, dtype, precise)


@lru_cache(maxsize=256)
def _specs(rule: Rule, dtype: str, precise: bool) -> tuple[KernelSpec | None, ...]:
    adapts = rule.adapts
    if adapts is None:
        return (_flat(rule, rule.formula, (), dtype, precise), None, None, None)
    return (
        _flat(rule, rule.formula, ("ratio",), dtype, precise),
        None if adapts.states is None else _flat(rule, adapts.states, (), dtype, precise),
        _squares(rule, adapts.norms, dtype, precise),
        _ratio(rule, adapts, dtype, precise),
    )


def _flat(
    rule: Rule, formula: Formula, more: tuple[str, ...], dtype: str, precise: bool
) -> KernelSpec:
    """Of each element, with ``more`` numbers behind the others."""
    builder, given = _given(rule, more, dtype, precise, inner=0)
    return builder.build((term.value, Operand(dtype, (0,))) for term in formula(given))


def _squares(rule: Rule, norms: Formula, dtype: str, precise: bool) -> KernelSpec:
    """Sums of squares over a row."""
    builder, given = _given(rule, (), dtype, precise, inner=1)
    sums = [builder("reduce_sum", builder("square", term.value)) for term in norms(given)]
    return builder.build((value, Operand(dtype, ())) for value in sums)


def _ratio(rule: Rule, adapts: Adaptation, dtype: str, precise: bool) -> KernelSpec:
    """Of norms and numbers."""
    # How many norms there are is told by what they are of.
    _, elements = _given(rule, (), dtype, precise, inner=1)
    count = len(adapts.norms(elements))
    builder, number = Builder(dtype, 1, 0, precise=precise), Operand(dtype, (None,))
    norms = [Term(builder, builder.input(number)) for _ in range(count)]
    numbers = {name: Term(builder, builder.input(number)) for name in (*rule.shared, *rule.own)}
    ratio = adapts.ratio(SimpleNamespace(norms=norms, **numbers))
    return builder.build([(ratio.value, Operand(dtype, (0,)))])


def _given(
    rule: Rule, more: tuple[str, ...], dtype: str, precise: bool, *, inner: int
) -> tuple[Builder, SimpleNamespace]:
    """What formulas of elements read."""
    builder = Builder(dtype, 1, inner, precise=precise)
    array, number = Operand(dtype, (0,)), Operand(dtype, (None,))
    names = {"weight": array, "grad": array} | dict.fromkeys(rule.states, array)
    names |= dict.fromkeys((*rule.shared, *rule.own, *more), number)
    terms = {name: Term(builder, builder.input(operand)) for name, operand in names.items()}
    return builder, SimpleNamespace(**terms)
