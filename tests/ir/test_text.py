"""The text form: what is printed is read back to an equal graph."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.errors import ParseError
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import ROLES, Value
from graphopt.ir.parser import parse
from graphopt.ir.printer import labels, print_node
from graphopt.ir.types import DTYPES, UNKNOWN, TensorType

NAMES = st.text() | st.sampled_from(
    [
        "",
        "a",
        "a~2",
        "a:",
        "a::b",
        "a//b",
        "//",
        "%",
        "x#1",
        "return",
        "graph",
        "a b",
        "é",
        '"',
        "\n",
    ]
)
TYPES = st.just(UNKNOWN) | st.builds(
    TensorType,
    st.none() | st.sampled_from(list(DTYPES)),
    st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3).map(tuple),
)
ATTRS = st.dictionaries(
    NAMES, st.none() | st.booleans() | st.integers() | st.floats() | NAMES, max_size=3
).map(Attrs)


@st.composite
def odd_graphs(draw, depth=1):
    """Graphs with any names, attributes and types, nested, with control dependencies."""
    graph = Graph(draw(NAMES))
    values = []
    for _ in range(draw(st.integers(0, 3))):
        node = graph.add_input(draw(NAMES), draw(st.sampled_from(ROLES)), draw(TYPES), draw(ATTRS))
        values.append(node.out())
    for _ in range(draw(st.integers(0, 4))):
        ids = sorted({value.node for value in values})
        node = graph.add(
            draw(st.sampled_from(["relu", "_np.copy", "odd op", "0", "after", "Concat"])),
            draw(st.lists(st.sampled_from(values), max_size=3)) if values else [],
            draw(ATTRS),
            draw(st.lists(TYPES, min_size=1, max_size=3)),
            draw(NAMES),
            graphs=draw(st.lists(odd_graphs(depth - 1), max_size=2)) if depth else (),
            after=draw(st.lists(st.sampled_from(ids), max_size=2)) if ids else (),
        )
        values += node.values
    if values:
        graph.set_outputs(draw(st.lists(st.sampled_from(values), max_size=3)))
    return graph


@given(odd_graphs())
def test_round_trip(graph):
    read = parse(str(graph))
    assert str(read) == str(graph)
    assert read == graph
    assert [(n.op, n.name, n.attrs, n.types) for n in read.inputs] == [
        (n.op, n.name, n.attrs, n.types) for n in graph.inputs
    ]
    names = [node.name for node in graph.topological() if not node.is_input]
    assert [node.name for node in read.topological() if not node.is_input] == names


TEXT = """\
graph net(%x: f32[2,4] {__layout__="NC"}, param %w: ?, aux %"m n": f32[?]) {
  %split = SliceChannel(%x) {num_outputs=2} : (f32[2,2], f32[2,2])
  %~1 = relu(%split#1) : f32[2,2]
  %~2 = relu(%~1) after(%split, %w) : ?[2,2]
  %relu = relu(%~2)
  %relu~2 = "odd op"(%relu, %relu, %"m n") {"a b"=(1, None), c=-inf} [
    graph body(%s: ?) {
      %t = tanh(%s)
      return %t
    }
    graph ""() {
      return
    }
  ]
  return %relu~2, %split, %split, %x
}"""


def test_text_is_as_documented():
    graph = parse(TEXT)
    assert str(graph) == TEXT
    assert graph.find("split").types == (TensorType("float32", (2, 2)),) * 2
    assert [n.op for n in graph.inputs] == ["data", "param", "aux"]
    last = graph[graph.outputs[0].node]
    assert last.op == "odd op"
    assert last.name == "relu"
    assert [nested.name for nested in last.graphs] == ["body", ""]
    assert graph.outputs[1:3] == (Value(graph.find("split").id),) * 2


def test_comments_and_layout_do_not_matter():
    graph = parse(
        """
        // a comment
        graph net ( %x : f32[2], ) { // another
            %y=relu(%x,):f32[2] //%z
            return %y,
        } // the end
        """
    )
    assert str(graph) == "graph net(%x: f32[2]) {\n  %y = relu(%x) : f32[2]\n  return %y\n}"


def test_one_node_is_printed_as_in_its_graph():
    graph = parse(TEXT)
    assert print_node(graph, graph.find("split").id) == TEXT.splitlines()[1].strip()


def test_labels_number_what_shares_a_name():
    graph = Graph()
    ids = [graph.add_input(name).id for name in ("a", "", "a", "a~2", "")]
    assert [labels(graph)[i] for i in ids] == ["%a", "%~1", "%a~2", '%"a~2"', "%~2"]


def test_text_does_not_depend_on_ids():
    graph = Graph("net")
    spare = graph.add_input("spare")
    x = graph.add_input("x")
    y = graph.add("relu", [x], name="y")
    graph.set_outputs([y])
    graph.erase(spare.id)
    assert str(graph) == "graph net(%x: ?) {\n  %y = relu(%x)\n  return %y\n}"
    assert parse(str(graph)) == graph


BODY = "graph g(%x: f32[2]) {\n  "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected 'graph', found the end"),
        ("grph g() {}", "line 1: expected 'graph', found 'grph g() {}'"),
        ("graph", "line 1: expected a graph name, found the end"),
        ("graph g {", "line 1: expected '(', found '{'"),
        ("graph g(x: ?) {", "line 1: expected an input such as %data, found 'x: ?) {'"),
        ("graph g(%x) {", "line 1: expected ':', found ') {'"),
        ("graph g(%x: ) {", "line 1: expected a type such as f32[8,64] or ?, found ') {'"),
        (
            "graph g(\n%x: f99[2]) {",
            "line 2: 'f99[2]' is no tensor type; write for example f32[8,?,64] or ?",
        ),
        ("graph g(%x: f32[2,]) {", "line 1: 'f32[2,]' has a malformed shape"),
        ("graph g(%x: ? %y: ?) {", "line 1: expected ')', found '%y: ?) {'"),
        (
            "graph g(%x: ?, %x: ?) {",
            "line 1: expected a new name (%x is defined twice), found ') {'",
        ),
        (BODY, "line 2: expected a node such as %fc, or return, found the end"),
        (BODY + "%y relu(%x)", "line 2: expected '=', found 'relu(%x)'"),
        (BODY + "%y = (%x)", "line 2: expected an operator name, found '(%x)'"),
        (BODY + "%y = relu %x", "line 2: expected '(', found '%x'"),
        (BODY + "%y = relu(x)", "line 2: expected a value such as %fc or %split#1, found 'x)'"),
        (BODY + "%y = relu(%y)", "line 2: expected a value defined above, found '%y)'"),
        (
            BODY + "%x = relu(%x)",
            "line 2: expected a new name (%x is defined twice), found the end",
        ),
        (BODY + "%y = relu(%x", "line 2: expected ')', found the end"),
        (BODY + "%y = relu(%x) {=1}", "line 2: expected an attribute name, found '=1}'"),
        (BODY + "%y = relu(%x) {a}", "line 2: expected '=', found '}'"),
        (BODY + "%y = relu(%x) {a=b}", "line 2: expected a value for a, found 'b}'"),
        (BODY + '%y = relu(%x) {a="\\q"}', "line 2: expected a value for a, found '\"\\\\q\"}'"),
        (BODY + "%y = relu(%x) {a=(1}", "line 2: expected a value for a, found '(1}'"),
        (BODY + "%y = relu(%x) {a=1 b=2}", "line 2: expected '}', found 'b=2}'"),
        (
            BODY + "%y = relu(%x) {a=1, a=2}",
            "line 2: expected another attribute (a is given twice), found '=2}'",
        ),
        (BODY + "%y = relu(%x) after %x", "line 2: expected '(', found '%x'"),
        (BODY + '%"\\q" = relu(%x)', 'line 2: "\\q" is no text as JSON quotes it'),
        (BODY + '%y = "\\q"(%x)', 'line 2: "\\q" is no text as JSON quotes it'),
        (BODY + "%y = relu(%x) : (f32[2]", "line 2: expected ')', found the end"),
        (BODY + "return %x", "line 2: expected '}', found the end"),
        (BODY + "return %x\n}\n}", "line 4: expected the end of the text, found '}'"),
        (BODY + "return %x#9999999999", "line 2: expected '}', found '9'"),
        (BODY + "%y = f() [ graph", "line 2: expected a graph name, found the end"),
        ("graph g() { %y = f() [" * 60, "line 1: expected at most 50 graphs in each other"),
    ],
)
def test_errors_name_the_line(text, message):
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@given(
    st.text(alphabet='graph(){}%xy:?=,[]"~#\\ \n0', max_size=40),
    st.integers(0, 400),
    st.integers(0, 8),
)
def test_garbage_in_a_text_is_a_parse_error_or_nothing(garbage, start, length):
    text = TEXT[:start] + garbage + TEXT[start + length :]
    message = "line 0"
    try:
        parse(text)
    except ParseError as error:
        message = str(error)
    assert message.startswith("line ")
