"""Tensor types: what they know, and their text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.errors import ParseError
from graphopt.ir.types import DTYPES, UNKNOWN, TensorType, parse_type

TYPES = st.builds(
    TensorType,
    st.none() | st.sampled_from(list(DTYPES)),
    st.none() | st.lists(st.none() | st.integers(0, 10**6), max_size=5).map(tuple),
)


@given(TYPES)
def test_text_round_trip(type_):
    assert parse_type(str(type_)) == type_


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (TensorType("float32", (8, 64)), "f32[8,64]"),
        (TensorType("float16", (8, None, 64)), "f16[8,?,64]"),
        (TensorType("int64", ()), "i64[]"),
        (TensorType("uint8"), "u8[*]"),
        (TensorType(None, (2, None)), "?[2,?]"),
        (TensorType("bool", (1,)), "b1[1]"),
        (UNKNOWN, "?"),
    ],
)
def test_text(type_, text):
    assert str(type_) == text
    assert parse_type(text) == type_


@pytest.mark.parametrize("text", ["", "f33[2]", "f32[2", "f32[2,-1]", "f32[a]", "[2]", "f32 2"])
def test_no_type(text):
    with pytest.raises(ParseError, match="is no tensor type"):
        parse_type(text)


@pytest.mark.parametrize("text", ["f32[,]", "f32[2,]", "f32[2 3]"])
def test_malformed_shape(text):
    with pytest.raises(ParseError, match="has a malformed shape"):
        parse_type(text)


def test_spaces_do_not_matter():
    assert parse_type(" f32[ 2 , 3 ] ") == TensorType("float32", (2, 3))


def test_size_and_bytes():
    assert TensorType("float64", (2, 3)).nbytes == 48
    assert TensorType("float32", ()).size == 1
    assert TensorType("float32", (0, 5)).nbytes == 0
    assert TensorType(None, (2, 3)).size == 6
    assert TensorType(None, (2, 3)).nbytes is None
    assert TensorType("float32", (2, None)).size is None
    assert TensorType("float32").nbytes is None


def test_rank_and_static():
    assert TensorType("float32", (2, None)).rank == 2
    assert TensorType("float32").rank is None
    assert TensorType("float32", ()).is_static
    assert not TensorType("float32", (None,)).is_static
    assert not TensorType(None, (2,)).is_static


def test_with_shape_keeps_the_dtype():
    assert TensorType("float32", (2,)).with_shape((3, 4)) == TensorType("float32", (3, 4))


def test_bytes_are_numpys():
    for name, (_, size, _) in DTYPES.items():
        if name != "bfloat16":
            assert np.dtype(name).itemsize == size


def test_codes_are_mxnets(mx):
    for name, (_, _, code) in DTYPES.items():
        if name != "bfloat16":
            assert mx.ndarray.ndarray._DTYPE_NP_TO_MX[np.dtype(name).type] == code
