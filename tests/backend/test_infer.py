"""Types of all values, by MXNet's own inference."""

import ast

import pytest

import graphopt
from graphopt.backend.infer import infer_types, with_types
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.ir.constant import add_constant
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType

mx = import_mxnet()


def types(text):
    graph = with_types(parse(text))
    return {node.name: ", ".join(map(str, node.types)) for node in graph}


def test_parameters_get_their_types_from_what_reads_them(mx):
    assert types(
        """
        graph g(%x: f32[8,4], param %w: ?, param %b: ?) {
          %y = FullyConnected(%x, %w, %b) {num_hidden=3}
          return %y
        }"""
    ) == {"x": "f32[8,4]", "w": "f32[3,4]", "b": "f32[3]", "y": "f32[8,3]"}


def test_hidden_outputs_go_and_visible_ones_come(mx):
    found = types(
        """
        graph g(%x: f32[2,4], param %g: ?, param %b: ?, aux %m: ?, aux %v: ?) {
          %bn = BatchNorm(%x, %g, %b, %m, %v) : (?, ?, ?)
          %s = SliceChannel(%bn) {num_outputs=2} : (?, ?)
          %y = elemwise_add(%s, %s#1)
          return %y
        }"""
    )
    assert found["bn"] == "f32[2,4]"
    assert found["s"] == "f32[2,2], f32[2,2]"
    assert found["m"] == found["g"] == "f32[4]"


#: Of what is laid flat.
_SETTINGS = {"concatenate": "axis=None, num_args=2"}


@pytest.mark.parametrize("np_shape", [False, True])
@pytest.mark.parametrize(
    ("op", "shape", "stacked"),
    [
        ("concatenate", "2,3", "12"),
        ("hstack", "3", "6"),
        ("hstack", "2,3", "2,6"),
        ("dstack", "3", "1,3,2"),
        ("dstack", "2,3", "2,3,2"),
        ("column_stack", "3", "3,2"),
        ("column_stack", "2,3", "2,6"),
    ],
)
def test_what_is_stacked_keeps_its_shape(mx, op, shape, stacked, np_shape):
    """MXNet writes gaps, other shapes, even other numbers of axes into what they read."""
    with mx.util.np_shape(np_shape):
        found = types(
            f"""
            graph g(%x: f32[{shape}], %y: f32[{shape}]) {{
              %h = tanh(%x)
              %s = _npi_{op}(%h, %y) {{{_SETTINGS.get(op, "num_args=2")}}}
              %a = exp(%h)
              return %s, %a
            }}"""
        )
    before = f"f32[{shape}]"
    assert found == dict.fromkeys("xyha", before) | {"s": f"f32[{stacked}]"}


@pytest.mark.parametrize("dtype", ["f16", "f64", "f32"])
def test_dtypes_of_floats(mx, dtype):
    found = types(f"graph g(%x: {dtype}[2,4], param %w: ?) {{ %y = dot(%x, %w) return %y }}")
    assert found["y"].startswith(dtype)
    assert found["w"].startswith(dtype)


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8", "i8"])
def test_dtypes_of_integers(mx, dtype):
    found = types(f"graph g(%x: {dtype}[2]) {{ %y = elemwise_add(%x, %x) return %y }}")
    assert found["y"] == f"{dtype}[2]"


def test_casts(mx):
    found = types('graph g(%x: f32[2]) { %y = Cast(%x) {dtype="int64"} return %y }')
    assert found["y"] == "i64[2]"


def test_unknown_extents_stay_unknown(mx):
    found = types(
        """
        graph g(%x: f32[?,4], param %w: ?) {
          %y = FullyConnected(%x, %w) {no_bias=True, num_hidden=3}
          return %y
        }"""
    )
    assert found == {"x": "f32[?,4]", "w": "f32[3,4]", "y": "f32[?,3]"}


def test_unknown_shapes_stay_unknown(mx):
    found = types("graph g(%x: ?) { %y = relu(%x) %z = tanh(%y) return %z }")
    assert found == {"x": "f32[*]", "y": "f32[*]", "z": "f32[*]"}


def test_inference_runs_backwards_too(mx):
    found = types("graph g(%x: f32[2,3], %y: ?) { %z = elemwise_add(%x, %y) return %z }")
    assert found["y"] == "f32[2,3]"


def test_what_no_output_needs_keeps_its_type(mx):
    found = types("graph g(%x: f32[2], %u: ?) { %d = relu(%x) : ?[7] %y = tanh(%x) return %y }")
    assert (found["d"], found["u"], found["y"]) == ("?[7]", "?", "f32[2]")


def test_constants(mx):
    import numpy as np

    graph = Graph()
    x = graph.add_input("x", type=TensorType("float64"))
    k = add_constant(graph, np.zeros((2, 3), "float64"), "k")
    graph.set_outputs([graph.add("elemwise_add", [x, k], name="y")])
    inferred = infer_types(graph)
    assert str(inferred[graph.find("y").id][0]) == "f64[2,3]"


def test_zeros_of_open_shape_are_completed(mx):
    graph = with_types(
        parse(
            """
            graph g(%x: f32[5,2]) {
              %z = _zeros() {shape=(0, 2)}
              %y = elemwise_add(%x, %z)
              return %y
            }"""
        )
    )
    assert graph.find("z").attrs["shape"] == (5, 2)


def test_the_graph_given_stays(mx):
    graph = parse("graph g(%x: f32[2]) { %y = relu(%x) return %y }")
    before = str(graph)
    assert with_types(graph) is not graph
    assert str(graph) == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "elemwise_add(%x, %w)",
            "inputs of node 'y' (elemwise_add) do not fit: (f32[8,4], f32[9]); MXNet: ",
        ),
        (
            "FullyConnected(%x, %w) {no_bias=True, num_hidden=3}",
            "inputs of node 'y' (FullyConnected) do not fit: (f32[8,4], f32[9]); MXNet: Shape"
            " inconsistent, Provided = [9], inferred shape=(3,4)",
        ),
        (
            "elemwise_add(%x, %i)",
            "inputs of node 'y' (elemwise_add) do not fit: (f32[8,4], i32[8,4])",
        ),
        ("elemwise_add(%x)", "inputs of node 'y' (elemwise_add) do not fit: (f32[8,4]); MXNet: "),
    ],
)
def test_contradictions_name_the_node(mx, line, message):
    graph = parse(f"graph g(%x: f32[8,4], %w: f32[9], %i: i32[8,4]) {{ %y = {line} return %y }}")
    with pytest.raises(InputError) as caught:
        infer_types(graph)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", ["(4, 5)", "(-1, 4)"])
def test_a_reshape_that_does_not_fit_is_refused_as_by_mxnet(shape: str) -> None:
    """An array's own ``reshape`` raises this; the operator reads what lies behind the array."""
    with pytest.raises(mx.MXNetError):
        mx.nd.ones((2, 3)).reshape((4, 5))
    net = mx.sym.reshape(mx.sym.var("data"), shape=ast.literal_eval(shape)) + 1
    with pytest.raises(mx.MXNetError, match="cannot reshape") as found:
        graphopt.optimize(net)(mx.nd.ones((2, 3)))
    assert isinstance(found.value, InputError)
