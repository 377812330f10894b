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
from graphopt.kernels.spec_parser import parse

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


ERF_AND_POWER = (
    "f32[a] (f32[a]) { %1 = erf %0; %2 = add %1 1.0; %3 = square %0; %4 = neg %3; %5 = exp %4;"
    " return %2:f32[a], %5:f32[a] }"
)


def test_erf_by_a_power_that_is_there() -> None:
    spec = parse(ERF_AND_POWER)
    ops = ["square", "neg", "exp_nonpositive", "one_plus_erf_by"]
    assert [step.op for step in contract(spec).body] == ops
    x = np.linspace(-7, 7, 400_001)
    x = np.concatenate([x, [0.0, -0.0, 1e-40, 1e30, math.inf, -1e30, -math.inf]]).astype("float32")
    got, power = run(spec, [x])
    want = np.array([math.erfc(-value) for value in x.tolist()])
    assert np.abs(got - want).max() < 3.6e-7
    assert (got >= 0).all()
    assert (got <= 2).all()
    assert (got[-2:] == 0).all()
    assert (got[-4:-2] == 2).all()
    assert (power[-4:] == 0).all()
    for unknown in run(spec, [np.array([np.nan], "float32")]):
        assert np.isnan(unknown).all()


def test_powers_of_others_stay() -> None:
    spec = parse(ERF_AND_POWER.replace("square %0", "square %1"))
    assert [step.op for step in contract(spec).body] == [step.op for step in spec.body]
    spec = parse(ERF_AND_POWER.replace("%5 = exp", "%5 = expm1"))
    assert "one_plus_erf" in [step.op for step in contract(spec).body]


def test_gradient_of_gelu() -> None:
    spec = parse(GELU.format(dtype="f32", sum="add %2 1.0"))
    gradient = differentiate(spec).spec
    assert gradient is not None
    assert {"one_plus_erf_by", "exp_nonpositive"} <= {step.op for step in contract(gradient).body}
    x = np.linspace(-14, 14, 100_001).astype("float32")
    inputs = [np.ones_like(x), x]
    (got,) = run(spec, inputs, backward=True)
    (want,) = evaluate(gradient, inputs, dtype="float64")
    assert np.abs(got - want).max() < 4e-7


SOFTMAX = "{dtype}[a|b] ({dtype}[a,b]) {{ %1 = {op} %0; {more} return {end}:{dtype}[a,b] }}"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("more", ["", "%2 = mul %1 3.0;"])
def test_softmax(dtype: str, op: str, more: str) -> None:
    spec = parse(SOFTMAX.format(dtype=dtype, op=op, more=more, end="%2" if more else "%1"))
    ops = [step.op for step in prepared(spec).body]
    assert ops[:3] == ["reduce_max_number", "sub", "exp_nonpositive"]
    kind = {"f32": "float32", "f64": "float64"}[dtype]
    x = np.random.default_rng(0).normal(size=(9, 70)).astype(kind)
    x[0, 3:50] = -1e9
    x[1] = -np.inf
    x[2, ::2] = -np.inf
    x[3] = np.linspace(-1000, 0, 70)
    x[4, 69] = np.nan
    x[5, 0] = np.nan
    x[6, 33] = np.inf
    x[7] = np.nan
    (got,) = run(spec, [x])
    with np.errstate(invalid="ignore", divide="ignore"):
        (want,) = evaluate(spec, [x], dtype="float64")
    # The logarithm of a sum just above 1 is off by what the sum was rounded by.
    last = {"float32": 2e-6, "float64": 1e-14}[kind]
    tiny = {"float32": 1e-37, "float64": 1e-306}[kind] if op == "softmax" else last
    np.testing.assert_allclose(got, want, rtol=last, atol=tiny)
    assert np.isnan(got[[1, 4, 5, 6, 7]]).all()


@pytest.mark.parametrize(
    "text",
    [
        # What NaN makes of these is seen without the sum.
        "f32[a|b] (f32[a,b]) { %1 = reduce_max %0; %2 = sub %0 %1; %3 = exp %2;"
        " return %3:f32[a,b] }",
        "f32[a|b] (f32[a,b]) { %1 = reduce_max %0; %2 = sub %0 %1; %3 = exp %2;"
        " %4 = reduce_sum %3; %5 = recip %4; %6 = mul %3 %5; %7 = add %6 %1;"
        " return %7:f32[a,b] }",
        "f32[a|b] (f32[a,b]) { %1 = reduce_max %0; %2 = sub %0 %1; %3 = exp %2;"
        " %4 = reduce_sum %3; %5 = recip %4; %6 = mul %3 %5; return %6:f32[a,b], %3:f32[a,b] }",
        "f32[a|b] (f32[a,b], f32[a,b]) { %2 = reduce_max %0; %3 = sub %1 %2; %4 = exp %3;"
        " %5 = reduce_sum %4; %6 = recip %5; %7 = mul %4 %6; return %7:f32[a,b] }",
        "precise f32[a|b] (f32[a,b]) { %1 = softmax %0; return %1:f32[a,b] }",
    ],
)
def test_exps_that_are_no_softmax_stay(text: str) -> None:
    assert "exp" in [step.op for step in prepared(parse(text)).body]
    assert "reduce_max" in [step.op for step in prepared(parse(text)).body]


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_exp_of_what_is_not_positive(kind: str) -> None:
    short = {"float32": "f32", "float64": "f64"}[kind]
    text = f"{short}[a] ({short}[a]) {{ %1 = exp_nonpositive %0; return %1:{short}[a] }}"
    info = np.finfo(kind)
    lowest = float(np.log(info.smallest_normal))
    x = np.concatenate([np.linspace(lowest, 0, 400_001), -np.logspace(-30, 0, 999), [0.0, -0.0]])
    x = x.astype(kind)
    x = x[x >= lowest * (1 - 1e-7)]
    (got,) = run(parse(text), [x])
    want = np.exp(x.astype("longdouble"))
    error = np.abs(got - want) / np.spacing(want.astype(kind)).astype("longdouble")
    assert error[want > info.smallest_normal].max() < 1.1
    below = np.array([lowest * 1.01, -1e9, -np.inf, np.nan], kind)
    (got,) = run(parse(text), [below])
    assert (got[:3] == 0).all()
    assert np.isnan(got[3])
