"""Kernels in stages compute what they do as a whole, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.kernels.instructions import INSTRUCTIONS
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse
from graphopt.kernels.stages import WANTED_COST, stages
from tests.kernels.test_rows import call, call_piece, noise

WIDTH = 100
#: Of an LSTM, whose state is an output that the second stage reads.
LSTM = (
    "f32[a,b] (f32[b], f32[a,b], f32[a,b], f32[a,b], f32[a,b], f32[a,b]) { %6 = add %1 %0;"
    " %7 = tanh %6; %8 = sigmoid %2; %9 = mul %8 %7; %10 = sigmoid %3; %11 = mul %10 %4;"
    " %12 = add %11 %9; %13 = tanh %12; %14 = sigmoid %5; %15 = mul %14 %13;"
    " return %15:f32[a,b], %12:f32[a,b] }"
)
#: Of a GRU: the update gate waits.
GRU = (
    "f32[a,b] (f32[a,b], f32[a,b], f32[a,b], f32[a,b]) { %4 = sigmoid %0; %5 = sigmoid %1;"
    " %6 = mul %5 %2; %7 = tanh %6; %8 = sub 1.0 %4; %9 = mul %8 %7; %10 = mul %4 %3;"
    " %11 = add %9 %10; return %11:f32[a,b] }"
)
#: Nearly everywhere a product waits for a sum.
PRODUCTS = (
    "f32[a,b] (f32[a,b], f32[a,b]) { %2 = exp %0; %3 = mul %2 %1; %4 = exp %1; %5 = mul %4 %0;"
    " %6 = exp %3; %7 = exp %5; %8 = add %6 %3; %9 = add %7 %5; %10 = mul %8 %9;"
    " %11 = tanh %10; %12 = add %11 %5; return %12:f32[a,b] }"
)
LONG = (
    "f32[a,b] (f32[a,b], f32[a,b]) { %2 = exp %0; %3 = tanh %1; %4 = add %2 %3; %5 = erf %4;"
    " %6 = sigmoid %2; %7 = add %5 %6; %8 = log1p %2; %9 = sub %7 %8; %10 = tanh %9;"
    " %11 = add %10 %0; %12 = sin %11; return %12:f32[a,b], %1:f32[a,b], %5:f32[a,b] }"
)
SHORT = "f32[a,b] (f32[a,b]) { %1 = tanh %0; return %1:f32[a,b] }"
#: Instructions that leave products to be fused with the sums behind them.
STOPPED = (
    "f32[a,b] (f32[a,b], f32[a,b]) { %2 = tanh %0; %3 = erf %1; %4 = mul %2 %3; %5 = stop %4;"
    " %6 = tanh %1; %7 = exp %6; %8 = add %7 %5; return %8:f32[a,b] }"
)
CHOSEN = (
    "f32[a,b] (f32[a,b], f32[a,b]) { %2 = tanh %0; %3 = erf %1; %4 = mul %2 %3;"
    " %5 = where %0 %4 0.0; %6 = tanh %1; %7 = exp %6; %8 = add %5 1.0; %9 = mul %8 %7;"
    " return %9:f32[a,b] }"
)
ALL = {
    "stopped": STOPPED,
    "chosen": CHOSEN,
    "lstm": LSTM,
    "gru": GRU,
    "products": PRODUCTS,
    "long": LONG,
    "short": SHORT,
}


def arrays_of(spec: KernelSpec) -> list[Any]:
    inputs = [
        noise(*((3, WIDTH) if len(operand.axes) == 2 else (WIDTH,)), seed=number)
        for number, operand in enumerate(spec.inputs)
    ]
    return inputs + [np.full((3, WIDTH), 7, "f") for _ in spec.outputs]


@pytest.mark.parametrize("name", ALL)
def test_stages_have_the_bits_of_the_whole(name: str) -> None:
    spec = parse(ALL[name])
    found, rows = stages(spec)
    whole, parts = arrays_of(spec), arrays_of(spec)
    call(spec, whole, [None] * len(whole), 3, WIDTH)
    waiting = [np.full(WIDTH, np.nan, "f") for _ in range(rows)]
    for row in range(3):
        for first in (0, 16, 32, 48, 64, 80, 84):
            for stage in found:
                operands = [[*parts, *waiting][number] for number in stage.operands]
                call_piece(stage.spec, operands, row, first)
    want = evaluate(spec, whole[: len(spec.inputs)])
    for place, right in enumerate(want, len(spec.inputs)):
        np.testing.assert_allclose(parts[place], right, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(parts[place], whole[place])


@pytest.mark.parametrize(
    ("name", "count", "rows"),
    [("lstm", 2, 0), ("gru", 1, 0), ("products", 2, None), ("long", 3, None), ("short", 1, 0)],
)
def test_how_many_stages(name: str, count: int, rows: int | None) -> None:
    found, waiting = stages(parse(ALL[name]))
    assert len(found) == count
    assert rows is None or waiting == rows


def test_stages_are_about_even() -> None:
    found, _ = stages(parse(LONG))
    costs = [sum(INSTRUCTIONS[step.op].cost for step in stage.spec.body) for stage in found]
    assert max(costs) <= 1.4 * WANTED_COST


def test_no_product_waits() -> None:
    """With a sum it would be one instruction of the whole, which rounds once."""
    found, _ = stages(parse(PRODUCTS))
    for stage in found[:-1]:
        first = len(stage.spec.inputs)
        waits = [stage.spec.body[result.value - first].op for result in stage.spec.outputs]
        assert "mul" not in waits
