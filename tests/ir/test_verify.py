"""Each violation of the IR's invariants is named, with the place in the text."""

import pytest

from graphopt.errors import GraphError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Value
from graphopt.ir.parser import parse
from graphopt.ir.verify import verify

TEXT = """
graph g(%x: f32[2], param %w: f32[2]) {
  %a = relu(%x) : f32[2]
  %b = tanh(%a) : f32[2]
  %c = elemwise_mul(%b, %w) : f32[2]
  return %c
}"""


@pytest.fixture
def graph():
    return parse(TEXT)


def message(graph, **options):
    with pytest.raises(GraphError) as caught:
        verify(graph, **options)
    return str(caught.value)


def test_sound_graphs_pass(graph):
    verify(graph)
    verify(graph, "captured")


def test_bad_node_is_shown_in_its_surroundings(graph):
    graph.update(graph.find("b").but(inputs=(graph.find("a").out(3),)))
    assert message(graph, where="some-pass") == (
        "node 'b' of graph 'g' is malformed after some-pass:"
        " its input 0 is output 3 of a node with 1\n"
        "graph g(%x: f32[2], param %w: f32[2]) {\n"
        "  %a = relu(%x) : f32[2]\n"
        "  %b = tanh(%a#3) : f32[2]\n"
        "  ^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  %c = elemwise_mul(%b, %w) : f32[2]\n"
        "  return %c\n"
        "}"
    )


def test_window_is_short_in_long_graphs():
    graph = Graph("g")
    node = graph.add_input("x")
    for number in range(100):
        node = graph.add("relu", [node], name=f"n{number}")
    graph.set_outputs([node])
    bad = graph.find("n50")
    graph.update(bad.but(inputs=(Value(bad.inputs[0].node, 1),)))
    lines = message(graph).splitlines()
    assert lines[6] == "  %n50 = relu(%n49#1)"
    assert lines[7] == "  ^^^^^^^^^^^^^^^^^^^"
    assert len(lines) == 13


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda node: node.but(op=""), "it has no operator name"),
        (lambda node: node.but(types=()), "it has no outputs"),
        (
            lambda node: node.but(inputs=(Value(0, -1),)),
            "its input 0 is output -1 of a node with 1",
        ),
        (lambda node: node.but(op="data"), "it is no input of the graph"),
    ],
)
def test_malformed_operators(graph, change, problem):
    graph.update(change(graph.find("b")))
    assert message(graph).splitlines()[0] == f"node 'b' of graph 'g' is malformed: {problem}"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda node: node.but(inputs=(Value(1),)), "an input reads nothing and has one output"),
        (lambda node: node.but(types=node.types * 2), "an input reads nothing and has one output"),
        (lambda node: node.but(op="relu", inputs=(Value(1),)), "an input of the graph is a relu"),
    ],
)
def test_malformed_inputs(graph, change, problem):
    graph.update(change(graph.find("x")))
    assert message(graph).splitlines()[0] == f"node 'x' of graph 'g' is malformed: {problem}"


def test_bad_inputs_are_shown_in_the_signature(graph):
    graph.update(graph.find("w").but(inputs=(Value(0),)))
    assert message(graph).splitlines()[1:4] == [
        "graph g(%x: f32[2], param %w: f32[2]) {",
        "                    ^^^^^^^^^^^^^^^^",
        "  %a = relu(%x) : f32[2]",
    ]


def test_nodes_outside_the_signature_are_no_inputs(graph):
    graph.add("data", (), name="stray")
    expected = "node 'stray' of graph 'g' is malformed: it is no input of the graph"
    assert message(graph).splitlines()[0] == expected


def test_two_inputs_of_one_name(graph):
    graph.add_input("x", "aux")
    assert message(graph, where="p") == "graph 'g' after p has two inputs named 'x'"


def test_nothing_returned(graph):
    graph.set_outputs([])
    assert message(graph) == "graph 'g' returns nothing"


@pytest.mark.parametrize("index", [1, -1])
def test_missing_output(graph, index):
    value = graph.find("c").out(index)
    graph.set_outputs([value])
    assert message(graph) == f"graph 'g' returns output {index} of node 'c', which has 1"


def test_returned_node_is_missing(graph):
    graph.set_outputs([Value(77)])
    assert message(graph) == "graph 'g' has no node 77"


def test_cycles_and_dangling_reads(graph):
    a, c = graph.find("a"), graph.find("c")
    graph.update(a.but(after=(55,)))
    assert message(graph) == "node 'a' (relu) reads node 55, which is not there"
    graph.update(a.but(after=(c.id,)))
    assert message(graph).startswith("graph 'g' has a cycle: c <- b <- a <- c")


def test_constants_are_made_by_passes_only():
    graph = parse(
        """
        graph g() {
          %k = constant() {data="AAAAAA==", dtype="float32", shape=(1,)} : f32[1]
          return %k
        }"""
    )
    verify(graph)
    first = message(graph, stage="captured").splitlines()[0]
    assert first.endswith("operator 'constant' is made by passes only")


def test_nested_graphs_are_checked(graph):
    inner = parse(TEXT.replace("graph g", "graph inner"))
    inner.set_outputs([])
    graph.update(graph.find("b").but(graphs=(inner,)))
    assert message(graph) == "graph 'inner' returns nothing"


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("broadcast_add(%x)", "broadcast_add takes 2 inputs (lhs, rhs), not 1"),
        ("exp(%x, %w)", "exp takes 1 input (data), not 2"),
        (
            "FullyConnected(%x, %w) {num_hidden=3}",
            "FullyConnected takes 3 inputs (data, weight, bias), not 2",
        ),
        ("FullyConnected(%x, %w) {no_bias=True, num_hidden=3}", ""),
        ("add_n(%x, %w, %x)", ""),
        ("my_operator()", ""),
    ],
)
def test_number_of_inputs(node, problem):
    graph = parse(f"graph g(%x: f32[2], param %w: f32[2]) {{ %y = {node} return %y }}")
    if not problem:
        verify(graph)
        return
    expected = f"node 'y' of graph 'g' is malformed: {problem}"
    assert message(graph).splitlines()[0] == expected


@pytest.mark.parametrize("was_checked", [False, True])
def test_nodes_of_a_known_graph_are_checked_for_what_they_read(graph, was_checked):
    before = graph.copy()
    if was_checked:
        verify(before)
    a = graph.find("a")
    graph.update(a.but(types=(a.type, a.type)))
    graph.update(graph.find("b").but(inputs=(a.out(1),)))
    verify(graph, known=before)
    two = graph.copy()
    two.update(a)
    assert "its input 0 is output 1 of a node with 1" in message(two, known=graph)


def test_a_graph_that_was_checked_is_checked_anew_after_a_write(graph):
    inner = parse(TEXT.replace("graph g", "graph inner"))
    graph.update(graph.find("b").but(graphs=(inner,)))
    verify(graph)
    inner.set_outputs([])
    graph.update(graph.find("a"))
    assert message(graph) == "graph 'inner' returns nothing"
