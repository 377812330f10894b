"""Graphs with other names."""

from __future__ import annotations

import pytest

from graphopt.ir.graph import Graph
from graphopt.ir.naming import Placeholders, renamed
from graphopt.ir.parser import parse

TEXT = """
graph net0(%x: f32[2,3], param %net0_w: f32[4,3] {__lr_mult__="2.0"}) {
  %net0_y = FullyConnected(%x, %net0_w) {no_bias=True, num_hidden=4}
  %z = f(%net0_y) after(%net0_y) [
    graph net0_inner(%net0_y: ?) {
      %net0_t = tanh(%net0_y)
      return %net0_t
    }
  ]
  return %z
}"""


def with_stems(text: str) -> Graph:
    graph = parse(text)
    graph.update(graph.find("z").but(origin=("net0_gone", "net0_y")))
    return graph


def test_all_names_change() -> None:
    graph = with_stems(TEXT)
    other = renamed(graph, lambda name: name.replace("net0", "net1"))
    assert str(other) == str(parse(TEXT.replace("net0", "net1")))
    assert other.find("z").origin == ("net1_gone", "net1_y")
    assert str(graph) == str(parse(TEXT))


def test_placeholders_are_those_of_an_equal_graph() -> None:
    graph, other = with_stems(TEXT), renamed(with_stems(TEXT), lambda name: f"({name})*")
    names, others = Placeholders(graph), Placeholders(other)
    nameless = renamed(graph, names.placeholder)
    assert str(nameless) == str(renamed(other, others.placeholder))
    assert names.order == others.order
    assert "net0" not in str(nameless)
    for found, wanted in ((names, graph), (others, other)):
        again = renamed(nameless, found.name)
        assert str(again) == str(wanted)
        assert [node.origin for node in again] == [node.origin for node in wanted]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(%x, %net0_w)", "(%net0_w, %x)"),
        ("(%net0_y: ?) {\n      %net0_t = tanh(%net0_y)", "(%s: ?) {\n      %net0_t = tanh(%s)"),
        ("after(%net0_y)", ""),
    ],
)
def test_placeholders_of_other_graphs_differ(old: str, new: str) -> None:
    assert old in TEXT
    graphs = parse(TEXT), parse(TEXT.replace(old, new))
    one, other = (renamed(graph, Placeholders(graph).placeholder) for graph in graphs)
    assert str(one) != str(other)


def test_names_made_of_placeholders() -> None:
    names = Placeholders(parse("graph g(%a: ?, %a_1: ?, %_: ?) { %b = f(%a, %a_1) return %b }"))
    a, b = names.placeholder("a"), names.placeholder("b")
    assert names.name(f"{b}_of_{a}") == "b_of_a"
    assert names.name(f"{a}_1") == "a_1_1"  # there is an "a_1"
    assert names.name(f"{a}_1") == "a_1_1"
    assert names.name("b") == "b_1"
    assert names.name("zeros") == "zeros"
    assert names.name("") == ""
    assert names.text(f"{a!r} stands behind {b}, not @77@") == "'a' stands behind b, not @77@"


def test_names_that_look_like_placeholders_stay() -> None:
    graph = parse("graph g(%x: ?) { %y = f(%x) return %y }")
    graph.update(graph.find("y").but(name="@0@"))
    names = Placeholders(graph)
    assert str(renamed(graph, names.placeholder)) == str(graph)
    assert str(renamed(graph, names.name)) == str(graph)
    assert names.text("[@0@]") == "[@0@]"
