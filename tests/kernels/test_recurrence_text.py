"""Specs of recurrences as text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.errors import ParseError
from graphopt.kernels.recurrence.spec import Ref, parse

TANH = "f32[a,b] (f32[a,b], f32[b]) { %2 = add %0 %1; %3 = tanh %2; return %3:f32[a,b] }"
ELMAN = (
    "recurrence f32 (3, 2) (4) (4x3, 6x4) (4) ;; 4 = x0 @ m0' + s0 @ m1[1:5,0:4] ;;"
    f" 4 = t0 v0 -> {TANH} ;; next t1 ;; emit t1[1:3], x1"
)


def test_text() -> None:
    spec = parse(ELMAN)
    assert str(spec) == ELMAN
    assert parse(str(spec)) == spec
    assert (spec.dtype, spec.sequences, spec.states) == ("float32", (3, 2), (4,))
    assert (spec.matrices, spec.vectors, spec.values) == (((4, 3), (6, 4)), (4,), (4, 4))
    assert spec.emit == (Ref("t", 1, 1, 2), Ref("x", 1, 0, 2))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("recurrence", "sequence", "is no recurrence"),
        ("f32 (3", "f16 (3", "is no recurrence"),
        (" ;; emit t1[1:3], x1", "", "next"),
        ("emit", "give", "ends with its emit"),
        ("next t1", "next t1, t1", "2 next states for 1 states"),
        ("next t1", "next", "0 next states for 1 states"),
        ("next t1", "next t1[0:3]", "a state of 4 columns cannot become"),
        ("next t1", "next v0", "cannot hand on a vector"),
        ("next t1", "next t2", "'t2' is nothing"),
        ("t1[1:3]", "t1[3:5]", "t1 has no columns 3:5"),
        ("t1[1:3]", "t1[3:3]", "t1 has no columns 3:3"),
        ("t1[1:3]", "q1", "'q1' is nothing"),
        ("4 = t0 v0", "4 = t1 v0", "'t1' is nothing"),
        ("4 = t0 v0", "4 = t0 s0", "disagree on whether rows are alike"),
        ("4 = t0 v0", "4 = t0[0:2] v0", "has other columns"),
        ("4 = t0 v0", "4 = t0", "operands do not fit its kernel"),
        ("4 = t0 v0", "3 = t0 v0", "does not have 3 columns"),
        ("x0 @ m0'", "x0 @ m2'", "is no product"),
        ("x0 @ m0'", "x0 @ m0", "does not fit"),
        ("x0 @ m0'", "x1 @ m0'", "does not fit"),
        ("m1[1:5,0:4]", "m1[3:7,0:4]", "has no such part"),
        ("m1[1:5,0:4]", "m1[1:4,0:4]", "does not fit"),
        ("s0 @ m1", "v0 @ m1", "compute it before"),
        (TANH, TANH.replace("f32", "f64"), "has two axes and computes in float32"),
        (TANH, "f32[a] (f32[a]) { %1 = tanh %0; return %1:f32[a] }", "operands|has two axes"),
    ],
)
def test_text_that_makes_no_sense(old: str, new: str, why: str) -> None:
    assert old in ELMAN
    with pytest.raises(ParseError, match=why):
        parse(ELMAN.replace(old, new, 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "recurrence",
        ELMAN[:40],
        ELMAN.replace("4x3", "4"),
        ELMAN.replace("4x3", "4xq"),
        ELMAN.replace("(4)", "(q)"),
        ELMAN.replace("4 = t0 v0", "q = t0 v0"),
        ELMAN.replace("4 = t0 v0", "4 ="),
        ELMAN.replace("(3, 2)", "(-3, 2)"),
        ELMAN.replace("[1:3]", "[3:1]"),
    ],
)
def test_no_text_fails_otherwise(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


@settings(max_examples=200)
@given(
    st.integers(0, len(ELMAN)),
    st.integers(0, 6),
    st.sampled_from(["", " ", "0", "9", "-1", "x", "t", "(", ")", ";;", "=", "->", "+", "@", ","]),
)
def test_damaged_text(at: int, gone: int, new: str) -> None:
    """It is a spec, or says why it is none."""
    try:
        spec = parse(ELMAN[:at] + new + ELMAN[at + gone :])
    except ParseError:
        return
    assert parse(str(spec)) == spec


def test_specs_are_checked_however_they_are_made() -> None:
    spec = parse(ELMAN)
    with pytest.raises(ParseError, match="cannot compute in float16"):
        replace(spec, dtype="float16")
    with pytest.raises(ParseError, match="is none of"):
        replace(spec, emit=(Ref("y", 0, 0, 1),))
    with pytest.raises(ParseError, match="not known where it is read"):
        replace(spec, emit=(Ref("t", 7, 0, 1),))
