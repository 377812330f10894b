"""1 + erf(x), and sigmoid(x) * tanh(y), in one instruction."""

from __future__ import annotations

import math

import numpy as np
import pytest

from graphopt.kernels import library
from graphopt.kernels.contract import contract, prepared
from graphopt.kernels.emit.inplace import overwritable
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.plan import forward_plan, inplace_pairs
from graphopt.kernels.run import run
from graphopt.kernels.spec import parse

GELU = (
    "{dtype}[a] ({dtype}[a]) {{ %1 = mul %0 0.7071067811865476; %2 = erf %1; %3 = {sum};"
    " %4 = mul %0 0.5; %5 = mul %4 %3; return %5:{dtype}[a] }}"
)


@pytest.mark.parametrize("terms", ["add %2 1.0", "add 1.0 %2"])
def test_gelu_and_its_gradient(terms: str) -> None:
    spec = parse(GELU.format(dtype="f32", sum=terms))
    assert [step.op for step in contract(spec).body] == ["mul", "one_plus_erf", "mul", "mul"]
    gradient = differentiate(spec).spec
    assert gradient is not None
    assert "erf" not in [step.op for step in contract(gradient).body]


@pytest.mark.parametrize(
    "text",
    [
        GELU.format(dtype="f64", sum="add %2 1.0"),
        "precise " + GELU.format(dtype="f32", sum="add %2 1.0"),
        GELU.format(dtype="f32", sum="add %2 2.0"),
        GELU.format(dtype="f32", sum="add %2 %1"),
        GELU.format(dtype="f32", sum="sub 1.0 %2"),
        "f32[a] (f32[a]) { %1 = add %0 1.0; %2 = erf %1; return %2:f32[a] }",
    ],
)
def test_others_stay(text: str) -> None:
    spec = parse(text)
    assert [step.op for step in contract(spec).body] == [step.op for step in spec.body]


def test_erf_that_is_read_elsewhere_stays() -> None:
    spec = parse("f32[a] (f32[a]) { %1 = erf %0; %2 = add %1 1.0; return %2:f32[a], %1:f32[a] }")
    assert contract(spec) == spec


# What is contracted keeps other values for later walks of a row than what is not.
SEVERAL_WALKS = [
    "f32[a|b] (f32[a,b]) { %1 = erf %0; %2 = add %1 1.0; %3 = reduce_sum %1; %4 = reduce_sum %2;"
    " %5 = mul %1 %3; %6 = mul %2 %4; %7 = add %5 %6; return %7:f32[a,b] }",
    "f32[a|b] (f32[a,b]) { %1 = erf %0; %2 = add %1 1.0; %3 = reduce_sum %2; %4 = mul %2 %3;"
    " %5 = neg %0; return %5:f32[a,b], %4:f32[a,b] }",
    "f32[a|b] (f32[a,b], f32[a,b]) { %2 = sigmoid %0; %3 = tanh %1; %4 = mul %2 %3;"
    " %5 = softmax %4; return %5:f32[a,b] }",
]


@pytest.mark.parametrize("text", SEVERAL_WALKS)
def test_plans_of_memory_are_of_what_is_compiled(text: str) -> None:
    spec = parse(text)
    assert forward_plan(spec)[7] == library.kernel(text, backward=False).scratch_rows
    assert set(inplace_pairs(text, backward=False)) <= set(overwritable(prepared(spec)))
    x = np.random.default_rng(0).normal(size=(64, 3000)).astype("float32")
    inputs = [x] * len(spec.inputs)
    for got, want in zip(run(spec, inputs), evaluate(spec, inputs, dtype="float64"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_values() -> None:
    spec = parse("f32[a] (f32[a]) { %1 = erf %0; %2 = add %1 1.0; return %2:f32[a] }")
    special = [0.0, -0.0, 1e-40, 4.0, -4.0, 9.5, 20.0, 1e30, math.inf, -20.0, -1e30, -math.inf]
    x = np.concatenate([np.linspace(-7, 7, 400_001), [0.6557241, 0.194152], special]).astype(
        "float32"
    )
    (got,) = run(spec, [x])
    want = np.array([math.erfc(-value) for value in x.tolist()])
    assert np.abs(got - want).max() < 1.5e-7
    assert (got >= 0).all()
    assert (got <= 2).all()
    assert (got[-3:] == 0).all()
    assert (got[-5:-3] == 2).all()
    (unknown,) = run(spec, [np.array([np.nan], "float32")])
    assert np.isnan(unknown).all()


GATE = (
    "{dtype}[a] ({dtype}[a], {dtype}[a]) {{ %2 = sigmoid %0; %3 = tanh %1; %4 = mul {terms};"
    " return %4:{dtype}[a] }}"
)


@pytest.mark.parametrize("terms", ["%2 %3", "%3 %2"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_gates(dtype: str, terms: str) -> None:
    spec = parse(GATE.format(dtype=dtype, terms=terms))
    assert [step.op for step in contract(spec).body] == ["sigmoid_times_tanh"]
    kind = {"f32": "float32", "f64": "float64"}[dtype]
    grid = np.linspace(-95, 95, 601)
    grid = np.concatenate([grid, grid / 50, [0.0, -0.0, 1e-30, -1e-30, np.inf, -np.inf]])
    x, y = (a.ravel().astype(kind) for a in np.meshgrid(grid, grid))
    (got,) = run(spec, [x, y])
    want = np.tanh(y.astype("longdouble")) / (1 + np.exp(-x.astype("longdouble")))
    with np.errstate(under="ignore"):
        spacing = np.spacing(np.abs(want).astype(kind)).astype("longdouble")
    error = np.abs(got - want) / spacing
    assert error.max() < 4.5
    assert (np.signbit(got) == np.signbit(y)).all()
    (unknown,) = run(spec, [np.array([np.nan, 1.0], kind), np.array([1.0, np.nan], kind)])
    assert np.isnan(unknown).all()


def test_gates_that_are_read_elsewhere_stay() -> None:
    spec = parse(
        "f32[a] (f32[a], f32[a]) { %2 = sigmoid %0; %3 = tanh %1; %4 = mul %2 %3; %5 = add %4 %3;"
        " return %5:f32[a] }"
    )
    assert contract(spec) == spec
    spec = parse(GATE.format(dtype="f32", terms="%2 %2"))
    assert contract(spec) == spec


def test_gradients_of_contracted_instructions() -> None:
    whole = parse(
        "f64[a] (f64[a], f64[a]) { %2 = sigmoid_times_tanh %0 %1; %3 = one_plus_erf %2;"
        " return %3:f64[a] }"
    )
    parts = parse(
        "f64[a] (f64[a], f64[a]) { %2 = sigmoid %0; %3 = tanh %1; %4 = mul %2 %3; %5 = erf %4;"
        " %6 = add %5 1.0; return %6:f64[a] }"
    )
    rng = np.random.default_rng(0)
    x, y, head = rng.normal(size=(3, 200))
    made, slopes = [], []
    for spec in (whole, parts):
        (out,) = run(spec, [x, y])
        found = differentiate(spec)
        read = [*(head for _ in found.heads), *([x, y][i] for i in found.inputs)]
        slopes.append(run(spec, [*read, *(out for _ in found.outputs)], backward=True))
        made.append(out)
    np.testing.assert_allclose(made[0], made[1], rtol=1e-13)
    for got, want in zip(*slopes, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15)
