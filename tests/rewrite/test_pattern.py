from __future__ import annotations

import pytest

from graphopt.ir.parser import parse
from graphopt.rewrite import Edit, Mismatch, Op, Var
from graphopt.rewrite.pattern import match


def at(text, pattern, name="r"):
    graph = parse(f"graph g(%x: f32[2], %y: f32[2]) {{\n{text}\n}}")
    found = match(Edit(graph), pattern, graph.find(name))
    return None if found is None else {k: graph[v.node].name for k, v in found.values.items()}


SUB = Op("elemwise_sub", Var("a"), Op("negative", Var("b")))
ADD = Op("elemwise_add", Var("a"), Op("negative", Var("b")))
NEG_LEFT = "%n = negative(%x) : f32[2]\n%r = {op}(%n, %y) : f32[2]\nreturn %r"


def test_inputs_match_in_either_order_where_the_operator_commutes():
    assert at(NEG_LEFT.format(op="elemwise_add"), ADD) == {"a": "y", "b": "x"}
    assert at(NEG_LEFT.format(op="elemwise_sub"), SUB) is None


def test_the_same_variable_is_the_same_value():
    twice = Op("elemwise_mul", Var("a"), Var("a"))
    assert at("%r = elemwise_mul(%x, %x) : f32[2]\nreturn %r", twice) == {"a": "x"}
    assert at("%r = elemwise_mul(%x, %y) : f32[2]\nreturn %r", twice) is None


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (1, True),
        (2, False),
        (lambda s: s is not None and s > 0, True),
        (lambda s: s is None, False),
    ],
)
def test_attributes_are_values_or_predicates(wanted, matches):
    pattern = Op("_plus_scalar", Var("a"), scalar=wanted)
    found = at("%r = _plus_scalar(%x) {scalar=1} : f32[2]\nreturn %r", pattern)
    assert (found is not None) == matches


def test_an_interior_value_read_elsewhere_is_a_near_miss():
    text = NEG_LEFT.format(op="elemwise_add").replace("return %r", "return %r, %n")
    with pytest.raises(Mismatch, match="'n', a part of it, is read elsewhere too"):
        at(text, ADD)
    shared = Op("elemwise_add", Var("a"), Op("negative", Var("b"), only_user=False))
    assert at(text, shared) == {"a": "y", "b": "x"}


def test_the_other_order_is_tried_before_a_near_miss_counts():
    text = """
      %n = negative(%x) : f32[2]
      %m = negative(%y) : f32[2]
      %r = elemwise_add(%m, %n) : f32[2]
      return %r, %n
    """
    assert at(text, ADD) == {"a": "n", "b": "y"}


def test_aliases_match():
    pattern = Op("elemwise_add", Var("a"), Var("b"))
    assert at("%r = _plus(%x, %y) : f32[2]\nreturn %r", pattern) == {"a": "x", "b": "y"}
