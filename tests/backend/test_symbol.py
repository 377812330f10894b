"""Graphs as MXNet Symbols, and back."""

import json

import numpy as np
import pytest

from graphopt.backend.symbol import constants, first_line, to_json, to_symbol
from graphopt.errors import GraphError
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.constant import add_constant, constant_array
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse

TEXT = """\
graph g(%x: f32[2,4], param %"w 1": f32[3,4] {__lr_mult__="2.0"}, aux %unread: f32[9]) {
  %fc = FullyConnected(%x, %"w 1") {flatten=True, no_bias=True, num_hidden=3} : f32[2,3]
  %dead = tanh(%fc) : f32[2,3]
  %s = slice(%fc) {begin=(None, 0), end=(None, 2)} : f32[2,2]
  %y = relu(%s) after(%fc) : f32[2,2]
  return %y, %fc
}"""


def test_json(mx):
    document = json.loads(to_json(parse(TEXT)))
    assert [(n["op"], n["name"], n.get("attrs")) for n in document["nodes"]] == [
        ("null", "x", None),
        ("null", "w 1", {"__lr_mult__": "2.0"}),
        ("FullyConnected", "fc", {"flatten": "True", "no_bias": "True", "num_hidden": "3"}),
        ("slice", "s", {"begin": "(None, 0)", "end": "(None, 2)"}),
        ("relu", "y", None),
        ("tanh", "dead", None),
    ]
    assert document["nodes"][4]["control_deps"] == [2]
    assert document["heads"] == [[4, 0, 0], [2, 0, 0]]
    assert document["arg_nodes"] == [0, 1]


def test_names_of_any_language_and_order_of_inputs(mx):
    symbol = to_symbol(parse('graph g(%"вход": f32[2]) { %"出" = relu(%"вход") return %"出" }'))
    assert symbol.list_inputs() == ["вход"]
    assert symbol.list_outputs() == ["出_output"]


def test_there_and_back(mx):
    graph = parse(TEXT)
    lifted = lift_symbol(to_symbol(graph), {"x": (2, 4), "w 1": (3, 4)}, data={"x"}, name="g")
    expected = TEXT.replace(", aux %unread: f32[9]", "").replace(
        "  %dead = tanh(%fc) : f32[2,3]\n", ""
    )
    assert str(lifted) == expected


def test_constants_are_variables_with_values(mx):
    graph = Graph("g")
    array = np.arange(6, dtype="int32").reshape(2, 3)
    node = add_constant(graph, array, "k")
    graph.set_outputs([graph.add("relu", [node], name="y")])
    assert to_symbol(graph).list_inputs() == ["k"]
    np.testing.assert_array_equal(constants(graph)["k"], array)
    assert not constant_array(node).flags.writeable
    fortran = add_constant(graph, np.asfortranarray(array), "f")
    np.testing.assert_array_equal(constant_array(fortran), array)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_positions_are_constants_of_few_letters(dtype):
    graph = Graph("g")
    array = np.arange(10_000, dtype=dtype).reshape(1, -1)
    node = add_constant(graph, array, "k")
    assert node.attrs["data"] == "range"
    found = constant_array(node)
    assert found.dtype == array.dtype
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, array)
    assert parse(str(graph)) == graph


def test_variables_need_names(mx):
    graph = parse("graph g(%x: ?) { %y = relu(%x) return %y }")
    graph.update(graph.find("x").but(name=""))
    with pytest.raises(GraphError, match=r"^a variable of the graph has no name"):
        to_symbol(graph)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("NoSuchOp(%x)", "MXNet does not accept graph 'g': .*NoSuchOp is not registered"),
        ("Activation(%x)", "MXNet does not accept graph 'g': Required parameter act_type"),
        ("Activation(%x) {x=1}", "MXNet does not accept graph 'g': Cannot find argument 'x'"),
    ],
)
def test_refusals(mx, line, message):
    with pytest.raises(GraphError, match=message) as caught:
        to_symbol(parse(f"graph g(%x: ?) {{ %y = {line} return %y }}"))
    assert "\n" not in str(caught.value)


def test_an_unread_input_may_be_waited_for(mx):
    symbol = to_symbol(parse("graph g(%x: ?, %u: ?) { %y = relu(%x) after(%u) return %y }"))
    assert symbol.list_outputs() == ["y_output"]


def test_nested_graphs(mx):
    def step(data, state):
        return data + state, data * state

    outputs, states = mx.sym.contrib.foreach(step, mx.sym.var("data"), mx.sym.var("state"))
    group = mx.sym.Group([outputs, states])
    graph = lift_symbol(group, {"data": (4, 2), "state": (2,)}, name="g")
    loop = next(node for node in graph if node.op == "_foreach")
    assert len(loop.graphs) == 1
    assert parse(str(graph)) == graph
    feeds = {"data": mx.nd.arange(8).reshape((4, 2)), "state": mx.nd.ones((2,))}
    for want, got in zip(group.eval(**feeds), to_symbol(graph).eval(**feeds), strict=True):
        np.testing.assert_array_equal(want.asnumpy(), got.asnumpy())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("MXNetError: bad\nStack trace:\n  [bt] (0) x", "bad"),
        ('Traceback (most recent call last):\n  File "x.cc", line 3\nMXNetError: bad', "bad"),
        ("MXNetError: Error in operator fc: no", "Error in operator fc: no"),
        ("", "Exception"),
    ],
)
def test_first_line(text, line):
    assert first_line(Exception(text)) == line
