"""Recurrences of few columns without products: rows that lie side by side are computed as one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from graphopt.kernels.recurrence.plan import plan
from graphopt.kernels.recurrence.spec import RecurrenceSpec, parse
from tests.kernels.recurrence_support import Call, cell, check, check_forward, in_single
from tests.tiers import one_of

#: W is the number of columns; a step, its states and what it emits.
SPECS = {
    "kept values": "recurrence f64 (W) (W) () () ;; W, W = x0 s0 -> f64[a,b] (f64[a,b], f64[a,b]) {"
    " %2 = tanh %1; %3 = mul %2 %0; %4 = sin %3; %5 = add %4 %2; %6 = tanh %5;"
    " return %5:f64[a,b], %6:f64[a,b] } ;; next t1 ;; emit",
    "emitted": "recurrence f64 (W, W) (W) () () ;; W, W = x0 s0 x1 -> f64[a,b]"
    " (f64[a,b], f64[a,b], f64[a,b]) { %3 = sigmoid %0; %4 = mul %3 %1; %5 = add %4 %2;"
    " %6 = tanh %5; return %5:f64[a,b], %6:f64[a,b] } ;; next t0 ;; emit t1, t0",
    "a row for all": "recurrence f64 (W) (W) () (W) ;; W = x0 s0 v0 -> f64[a,b]"
    " (f64[a,b], f64[a,b], f64[b]) { %3 = mul %1 %2; %4 = tanh %3; %5 = add %4 %0;"
    " return %5:f64[a,b] } ;; next t0 ;; emit t0",
    "sums of rows": "recurrence f64 (W) (W) () () ;; W = x0 s0 -> f64[a|b] (f64[a,b], f64[a,b]) {"
    " %2 = reduce_sum %1; %3 = tanh %2; %4 = mul %3 %0; return %4:f64[a,b] } ;; next t0 ;; emit t0",
}

FLAGS: list[dict[str, Any]] = [
    {},
    {"reverse": True},
    {"batch_major": True},
    {"lengths": True},
    {"lengths": True, "reverse": True, "batch_major": True},
    {"zero_states": True},
]


def spec_of(name: str, width: int) -> RecurrenceSpec:
    return parse(SPECS[name].replace("W", str(width)))


@pytest.mark.parametrize(
    ("name", "width", "flags"),
    one_of(5, itertools.product(SPECS, (1, 3, 20, 63, 64, 70), FLAGS)),
)
def test_values_and_gradients(name: str, width: int, flags: dict[str, Any]) -> None:
    spec = spec_of(name, width)
    for batch in (1, 5, 70):
        check(spec, Call(4, batch, **flags))
        check_forward(in_single(spec), Call(4, batch, **flags), stash=True)


def test_values_of_one_width_are_stashed_apart() -> None:
    agreed = plan(spec_of("kept values", 3), training=True)
    assert (agreed.stash_width, agreed.stash_unit) == (6, 3)


def test_with_products_all_values_of_a_row_lie_together() -> None:
    agreed = plan(cell(4, 4, "float64", "lstm"), training=True)
    assert agreed.stash_unit == agreed.stash_width > 4


def test_values_of_several_widths_are_stashed_side_by_side() -> None:
    text = SPECS["kept values"].replace("W", "3").replace("(3) (3) ()", "(3) (3, 5) ()")
    spec = parse(text.replace("next t1", "next t1, s1"))
    assert plan(spec, training=True).stash_unit == 3
    gated = (
        "recurrence f64 (2) (2, 5) () () ;; 2 = x0 s0 -> f64[a,b] (f64[a,b], f64[a,b]) {"
        " %2 = mul %0 %1; %3 = tanh %2; return %3:f64[a,b] } ;; 5 = s1 -> f64[a,b] (f64[a,b]) {"
        " %1 = tanh %0; return %1:f64[a,b] } ;; next t0, t1 ;; emit"
    )
    agreed = plan(parse(gated), training=True)
    assert agreed.stash_unit == agreed.stash_width
    check(parse(gated), Call(4, 5))


@pytest.mark.parametrize("lengths", [False, True])
def test_a_step_that_does_nothing(lengths: bool) -> None:
    spec = parse("recurrence f64 (3) (3) () () ;; next s0 ;; emit")
    check_forward(spec, Call(4, 5, lengths=lengths))
