"""Attributes: reading MXNet's strings, writing them back, and the text form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.errors import ParseError
from graphopt.ir.attrs import EMPTY, Attrs, from_mxnet, parse_value, print_value, to_mxnet

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["1", "None", "inf", "(1, 2)", '"', "\\", "\n", "//", "}"])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)


@given(VALUES)
def test_text_round_trip(value):
    text = print_value(value)
    read, end = parse_value(text)
    assert end == len(text)
    assert Attrs(key=read) == Attrs(key=value)


@given(PLAIN | st.lists(PLAIN, max_size=3).map(tuple))
def test_mxnet_round_trip(value):
    assert from_mxnet({"key": to_mxnet(value)}) == Attrs(key=value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True),
        ("False", False),
        ("true", True),
        ("false", False),
        ("None", None),
        ("7", 7),
        ("-1", -1),
        ("+5", 5),
        ("0", 0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e-05", 1e-05),
        ("2E3", 2000.0),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("(3, 3)", (3, 3)),
        ("(3,3)", (3, 3)),
        ("[3, 3]", (3, 3)),
        ("(3L, 3L)", (3, 3)),
        ("(3,)", (3,)),
        ("(3)", (3,)),
        ("()", ()),
        ("[]", ()),
        ("(None, 2)", (None, 2)),
        ("(0.5, 1)", (0.5, 1)),
        (" (1, 2) ", (1, 2)),
        ("(True, False)", (True, False)),
        # No values, so the texts they are.
        ("relu", "relu"),
        ("", ""),
        (" relu ", " relu "),
        ("007", "007"),
        ("-0", "-0"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("(1, two)", "(1, two)"),
        ("((1, 2), (3,))", "((1, 2), (3,))"),
        ('["normal", {"sigma": 1}]', '["normal", {"sigma": 1}]'),
        ("(1, 2", "(1, 2"),
        ("(", "("),
        ("1,2", "1,2"),
        ("ij,jk->ik", "ij,jk->ik"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_from_mxnet(text, value):
    found = from_mxnet({"key": text})["key"]
    assert found == value
    assert type(found) is type(value)


def test_nan_is_read():
    assert math.isnan(from_mxnet({"key": "nan"})["key"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (None, "None"),
        (0.1, "0.1"),
        (1e-05, "1e-05"),
        ((3, 3), "(3, 3)"),
        ((3,), "(3,)"),
        ((), "()"),
        ((None, 2), "(None, 2)"),
        ("relu", "relu"),
        (math.inf, "inf"),
    ],
)
def test_to_mxnet(value, text):
    assert to_mxnet(value) == text


def test_dunder_attributes_and_custom_operators_stay_texts():
    assert from_mxnet({"__lr_mult__": "0.5"})["__lr_mult__"] == "0.5"
    assert from_mxnet({"op_type": "mine", "size": "3"}, raw=True) == Attrs(op_type="mine", size="3")


def test_no_attributes_is_the_empty_mapping():
    assert from_mxnet({}) is EMPTY


def test_iteration_is_by_key_and_lists_become_tuples():
    attrs = Attrs({"b": [1, [2]]}, a=1)
    assert list(attrs) == ["a", "b"]
    assert attrs["b"] == (1, (2,))
    assert dict(attrs) == {"a": 1, "b": (1, (2,))}


def test_equality_tells_types_apart():
    assert Attrs(a=1) != Attrs(a=True)
    assert Attrs(a=1) != Attrs(a=1.0)
    assert Attrs(a="1") != Attrs(a=1)
    assert Attrs(a=0.0) != Attrs(a=-0.0)
    assert Attrs(a=math.nan) == Attrs(a=math.nan)
    assert Attrs(a=1) != {"a": 1}
    assert hash(Attrs(a=1, b=2)) == hash(Attrs(b=2, a=1))


def test_changes_make_copies():
    attrs = Attrs(a=1, b=2)
    assert attrs.set(b=3, c=4) == Attrs(a=1, b=3, c=4)
    assert attrs.without("a", "x") == Attrs(b=2)
    assert attrs == Attrs(a=1, b=2)


def test_repr_is_the_text():
    assert repr(Attrs(axis=1, act_type="relu")) == 'Attrs({act_type="relu", axis=1})'


def test_keys_that_are_no_words_are_quoted():
    assert Attrs({"a b": 1, "c.d": 2}).text == '{"a b"=1, c.d=2}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a value at ''"),
        ("relu", "'relu' is no value; quote strings"),
        (",", "',' is no value; quote strings"),
        ("(1", "a tuple lacks its closing parenthesis"),
        ("(1 2)", "a tuple lacks its closing parenthesis"),
        ("(1,", "expected a value at ''"),
        ('"open', "expected a value at"),
        ('"\\q"', "is no text"),
        ("(" * 100_000, "nests too deep"),
        ("9" * 5000, "is no value"),
    ],
)
def test_no_value(text, message):
    with pytest.raises(ParseError) as caught:
        parse_value(text)
    assert message in str(caught.value)
