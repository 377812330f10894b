"""Kernels over axes that others come behind, whose rows lie side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.errors import GraphoptError, ParseError
from graphopt.kernels.expand import collapse
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.plan import inplace_pairs
from graphopt.kernels.run import Request, run
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse
from tests.kernels.column_specs import SOFTMAX, SPECS
from tests.kernels.test_run import assert_near, backward_operands, check, noise

SPACES = [(3, 5, 7), (2, 21, 1000), (1, 300, 70), (4, 4, 16), (2, 3, 1), (3, 600, 8)]


def operands(spec: KernelSpec, space: tuple[int, ...], seed: int = 0) -> list[Any]:
    return [
        noise(*(1 if a is None else space[a] for a in x.axes), dtype=x.dtype, seed=seed + i)
        for i, x in enumerate(spec.inputs)
    ]


def gradients_read(spec: KernelSpec, space: tuple[int, ...]) -> list[Any]:
    found = differentiate(spec).spec
    assert found is not None
    return operands(found, space, seed=20)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_values_and_gradients(name: str, space: tuple[int, ...]) -> None:
    spec = parse(SPECS[name])
    assert str(spec) == SPECS[name]
    check(spec, operands(spec, space[-spec.rank :]), space[-spec.rank :])


@pytest.mark.parametrize("name", SPECS)
def test_requests(name: str) -> None:
    spec, space = parse(SPECS[name]), (3, 9, 130)
    space = space[-spec.rank :]
    given = gradients_read(spec, space)
    want = run(spec, given, backward=True, extents=space)
    base = [noise(*w.shape, dtype=w.dtype, seed=5) for w in want]
    added = [np.array(b) for b in base]
    every = [Request.ADD] * len(added)
    run(spec, given, backward=True, extents=space, outputs=added, requests=every)
    for got, w, b in zip(added, want, base, strict=True):
        assert_near(got, w + b, str(w.dtype))
    for left_out in range(len(want)):
        found = [np.array(b) for b in base]
        asked = [Request.NULL if n == left_out else Request.WRITE for n in range(len(want))]
        run(spec, given, backward=True, extents=space, outputs=found, requests=asked)
        np.testing.assert_array_equal(found[left_out], base[left_out])
        for n, w in enumerate(want):
            if n != left_out:
                np.testing.assert_array_equal(found[n], w)


@pytest.mark.parametrize("name", ["softmax", "layer norm", "attention", "leading axis"])
def test_threads_change_no_bit(name: str, threads: Any) -> None:
    spec, space = parse(SPECS[name]), (5, 40, 3000)
    space = space[-spec.rank :]
    inputs, found = operands(spec, space), []
    for count in (1, 2, 3):
        threads(count)
        out = run(spec, inputs)
        heads = [noise(*o.shape, seed=9) for o in out]
        found.append([*out, *run(spec, backward_operands(spec, inputs, heads, out), backward=True)])
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(got, want)


@settings(max_examples=25)
@given(
    st.sampled_from(["sum", "softmax", "attention"]),
    st.tuples(st.integers(0, 3), st.integers(1, 70), st.integers(0, 200)),
)
def test_any_extents(name: str, space: tuple[int, int, int]) -> None:
    spec = parse(SPECS[name])
    check(spec, operands(spec, space), space)


def test_every_output_is_written() -> None:
    spec, space = parse(SPECS["leading axis"]), (50, 333)
    poisoned = [np.full(shape, np.nan, "float32") for shape in (space, space[1:])]
    assert all(np.isfinite(x).all() for x in run(spec, operands(spec, space), outputs=poisoned))


def test_softmax_is_written_over_its_input() -> None:
    assert inplace_pairs(SOFTMAX, backward=False) == ((0, 0),)
    assert inplace_pairs(SPECS["sum"], backward=False) == ()


def test_long_sums_lose_little() -> None:
    """One number after the other would err by the root of their number."""
    spec = parse("f32[|a|b] (f32[a,b]) { %1 = reduce_sum %0; return %1:f32[b] }")
    x = np.random.default_rng(0).uniform(0, 1, (100_001, 8)).astype("float32")
    (found,) = run(spec, [x])
    np.testing.assert_allclose(found, x.sum(0, dtype="float64"), rtol=1e-6)


def test_long_rows_that_are_kept() -> None:
    (found,) = run(parse(SOFTMAX), [noise(1, 70_000, 24)])
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-4)


def test_special_values() -> None:
    spec, x = parse(SOFTMAX), noise(1, 4, 16)
    x[0, 2, 3], x[0, 1, 5] = np.nan, -np.inf
    (found,) = run(spec, [x])
    np.testing.assert_array_equal(np.isnan(found).any((0, 1)), np.arange(16) == 3)
    assert found[0, 1, 5] == 0


def test_neighbouring_columns_are_one() -> None:
    spec = parse(
        "f32[a,b|c,d|e,f] (f32[a,b,c,d,e,f]) { %1 = softmax %0; return %1:f32[a,b,c,d,e,f] }"
    )
    assert str(collapse(spec).spec) == SOFTMAX
    check(spec, operands(spec, (2, 1, 3, 2, 4, 5)), (2, 1, 3, 2, 4, 5))


def test_some_columns_of_a_set_are_refused() -> None:
    text = (
        "f32[a|b|c,d] (f32[a,b,c,d], f32[d]) { %2 = add %0 %1; %3 = softmax %2;"
        " return %3:f32[a,b,c,d] }"
    )
    with pytest.raises(GraphoptError, match="some of the axes behind those that are reduced"):
        collapse(parse(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SOFTMAX.replace("|b|", "|b|c|").replace("a,b,c", "a,b,c,d"), "more than two bars"),
        (SOFTMAX.replace("[a|b|c]", "[a,b||c]"), "of which there are none"),
    ],
)
def test_texts_that_are_no_specs(text: str, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        parse(text)
