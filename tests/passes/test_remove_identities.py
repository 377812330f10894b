from __future__ import annotations

import pytest

from graphopt.errors import GraphError
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.passes.remove_identities import RemoveIdentities
from graphopt.pipeline.base import PassContext
from graphopt.testing import assert_equivalent, assert_ir, run_pass

#: Operators that are the identity, gradients included: text of a node that reads %a and %b.
NEUTRAL = {
    "copy": "_copy(%a) : f32[2,3,4,4]",
    "alias": "identity(%a) : f32[2,3,4,4]",
    "like": "_identity_with_attr_like_rhs(%a, %b) : f32[2,3,4,4]",
    "cast": 'Cast(%a) {dtype="float32"} : f32[2,3,4,4]',
    "amp_cast": 'amp_cast(%a) {dtype="float32"} : f32[2,3,4,4]',
    "reshape": "Reshape(%a) {shape=(0, -1, 4, 4)} : f32[2,3,4,4]",
    "reshape_like": "reshape_like(%a, %b) : f32[2,3,4,4]",
    "squeeze": "squeeze(%a) : f32[2,3,4,4]",
    "transpose": "transpose(%a) {axes=(0, 1, 2, 3)} : f32[2,3,4,4]",
    "swap": "SwapAxis(%a) {dim1=2, dim2=2} : f32[2,3,4,4]",
    "slice": "slice(%a) {begin=(0, None), end=(2, None)} : f32[2,3,4,4]",
    "slice_axis": "slice_axis(%a) {axis=1, begin=0, end=None} : f32[2,3,4,4]",
    "slice_like": "slice_like(%a, %b) : f32[2,3,4,4]",
    "crop": "Crop(%a, %b) {num_args=2} : f32[2,3,4,4]",
    "concat": "Concat(%a) {dim=1, num_args=1} : f32[2,3,4,4]",
    "sum": "add_n(%a) {num_args=1} : f32[2,3,4,4]",
    "split": "SliceChannel(%a) {num_outputs=1} : f32[2,3,4,4]",
    "broadcast_to": "broadcast_to(%a) {shape=(0, 0, 4, 4)} : f32[2,3,4,4]",
    "broadcast_axis": "broadcast_axis(%a) {axis=(), size=()} : f32[2,3,4,4]",
    "broadcast_like": "broadcast_like(%a, %b) : f32[2,3,4,4]",
    "pad": 'Pad(%a) {mode="constant", pad_width=(0, 0, 0, 0, 0, 0, 0, 0)} : f32[2,3,4,4]',
    "tile": "tile(%a) {reps=(1, 1)} : f32[2,3,4,4]",
    "repeat": "repeat(%a) {axis=1, repeats=1} : f32[2,3,4,4]",
    "pool": 'Pooling(%a) {kernel=(1, 1), pool_type="avg"} : f32[2,3,4,4]',
    "pool_sum": 'Pooling(%a) {kernel=(1, 1), pool_type="sum", stride=(1, 1)} : f32[2,3,4,4]',
    "adaptive": "_contrib_AdaptiveAvgPooling2D(%a) {output_size=(4, 4)} : f32[2,3,4,4]",
    "dropout": "Dropout(%a) {p=0.0} : f32[2,3,4,4]",
    "clip": "clip(%a) {a_max=inf, a_min=-inf} : f32[2,3,4,4]",
}

#: Operators that only forward is the identity of.
FORWARD = {
    "block": "BlockGrad(%a) : f32[2,3,4,4]",
    "block_alias": "stop_gradient(%a) : f32[2,3,4,4]",
    "make_loss": "make_loss(%a) : f32[2,3,4,4]",
    "old_loss": "MakeLoss(%a) {grad_scale=2.0} : f32[2,3,4,4]",
    "scale": "_contrib_gradientmultiplier(%a) {scalar=0.5} : f32[2,3,4,4]",
    "dropout": "Dropout(%a) {p=0.5} : f32[2,3,4,4]",
}

#: Look-alikes that compute something.
WORK = {
    "cast": 'Cast(%a) {dtype="float64"} : f64[2,3,4,4]',
    "reshape": "Reshape(%a) {shape=(3, 2, 4, 4)} : f32[3,2,4,4]",
    "unknown": "Reshape(%a) {shape=(-1, 3, 4, 4)} : f32[?,3,4,4]",
    "transpose": "transpose(%a) {axes=(0, 1, 3, 2)} : f32[2,3,4,4]",
    "swap": "SwapAxis(%a) {dim1=2, dim2=3} : f32[2,3,4,4]",
    "reverse": "slice(%a) {begin=(None, None), end=(None, None), step=(-1, 1)} : f32[2,3,4,4]",
    "max_pool": 'Pooling(%a) {kernel=(1, 1), pool_type="max"} : f32[2,3,4,4]',
    "global": 'Pooling(%a) {global_pool=True, kernel=(1, 1), pool_type="avg"} : f32[2,3,1,1]',
    "strided": 'Pooling(%a) {kernel=(1, 1), pool_type="avg", stride=(2, 2)} : f32[2,3,2,2]',
    "always": 'Dropout(%a) {mode="always", p=0.5} : f32[2,3,4,4]',
    "clip": "clip(%a) {a_max=inf, a_min=0.0} : f32[2,3,4,4]",
    "slice_axis": "slice_axis(%a) {axis=1, begin=1, end=3} : f32[2,2,4,4]",
    "concat": "Concat(%a, %a) {num_args=2} : f32[2,6,4,4]",
    "flip": "reverse(%a) {axis=(1,)} : f32[2,3,4,4]",
}


def around(node: str) -> Graph:
    """A graph in which ``node`` stands between two others."""
    out = node.rpartition(": ")[2]
    text = f"""
        graph g(%x: f32[2,3,4,4], %z: f32[2,3,4,4]) {{
          %a = tanh(%x) : f32[2,3,4,4]
          %b = tanh(%z) : f32[2,3,4,4]
          %id = {node}
          %y = sin(%id) : {out}
          return %y, %b
        }}
    """
    return parse(text.strip())


def message(text: str, **settings: object) -> str:
    """Why nothing was removed."""
    result = run_pass(text, "remove-identities", **settings)
    assert result.receipts[0].status == "unchanged"
    (remark,) = result.remarks
    return str(remark).removeprefix("missed: remove-identities: ")


# -- golden ----------------------------------------------------------------------------------


def test_example(example):
    before, after = example(RemoveIdentities)
    assert run_pass(before, "remove-identities").graph == after


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral(name, mode):
    result = run_pass(around(NEUTRAL[name]), "remove-identities", mode=mode)
    y = result.graph.find("y")
    assert result.graph[y.inputs[0].node].name == "a"
    assert len(result.graph) == 5


@pytest.mark.parametrize("name", FORWARD)
def test_for_training_only(name):
    graph = around(FORWARD[name])
    assert len(run_pass(graph, "remove-identities").graph) == 5
    assert run_pass(graph, "remove-identities", mode="training").graph is graph


def test_a_transpose_of_short_axes():
    text = """
        graph g(%x: f32[1,1,5,2]) {{
          %a = tanh(%x) : f32[1,1,5,2]
          %t = transpose(%a) {{axes={}}} : {}
          %y = sin(%t) : {}
          return %y
        }}
    """
    identity = text.format("(1, 0, 2, 3)", "f32[1,1,5,2]", "f32[1,1,5,2]")
    reshape = text.format("(2, 0, 1, 3)", "f32[5,1,1,2]", "f32[5,1,1,2]")
    assert len(run_pass(identity, "remove-identities").graph) == 3
    assert len(run_pass(reshape, "remove-identities").graph) == 4


def test_chains_go_in_one_run_and_the_output_keeps_its_name():
    result = run_pass(
        """
        graph g(%x: f32[8]) {
          %a = relu(%x) : f32[8]
          %b = _copy(%a) : f32[8]
          %c = Dropout(%b) : f32[8]
          %d = BlockGrad(%c) : f32[8]
          %out = _copy(%d) : f32[8]
          %e = exp(%c) : f32[8]
          return %out, %e
        }
        """,
        "remove-identities",
    )
    assert_ir(
        result,
        """
        graph g(%x: f32[8]) {
          %out = relu(%x) : f32[8]
          %e = exp(%out) : f32[8]
          return %out, %e
        }
        """,
    )
    assert result.receipts[0].stats == {
        "removed _copy": 2,
        "removed Dropout": 1,
        "removed BlockGrad": 1,
    }


def test_the_heir_of_a_name_knows_both_origins():
    graph = Graph()
    x = graph.add_input("x", type=TensorType("float32", (8,)))
    a = graph.add("relu", [x], name="a", origin=("a",))
    graph.set_outputs([graph.add("_copy", [a], name="out", origin=("out",))])
    assert run_pass(graph, "remove-identities").graph.find("out").origin == ("a", "out")


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", WORK)
def test_work_stays(name, mode):
    graph = around(WORK[name])
    result = run_pass(graph, "remove-identities", mode=mode)
    assert result.graph is graph
    assert not result.remarks


def test_the_callers_own_array():
    text = "graph g(%x: f32[8]) {\n %y = _copy(%x) : f32[8]\n return %y\n}"
    assert message(text) == (
        "1 identities stay: a graph output must not be the caller's own array [y]"
    )
    chain = (
        "graph g(%x: f32[8]) {\n %a = _copy(%x) : f32[8]\n %y = _copy(%a) : f32[8]\n return %y\n}"
    )
    assert_ir(run_pass(chain, "remove-identities"), text)


@pytest.mark.parametrize(
    ("source", "reads", "outputs"),
    [
        ("relu(%x) : f32[8]", "%a", "%y, %a"),
        ("SliceChannel(%x) {axis=0, num_outputs=2} : (f32[4], f32[4])", "%a#1", "%y"),
    ],
)
def test_names_of_outputs(source, reads, outputs):
    text = f"""
        graph g(%x: f32[8]) {{
          %a = {source}
          %y = _copy({reads}) : f32[8]
          return {outputs}
        }}
    """
    assert message(text) == "1 identities stay: the graph output would lose its name [y]"


def test_control_dependencies():
    text = """
        graph g(%x: f32[8]) {
          %a = relu(%x) : f32[8]
          %b = _copy(%a) : f32[8]
          %y = exp(%x) after(%b) : f32[8]
          return %y
        }
    """
    assert message(text) == "1 identities stay: a control dependency orders them [b]"


def test_a_copy_of_a_state_that_is_written():
    text = """
        graph g(%x: f32[4,3], param %g: f32[3], param %t: f32[3], aux %m: f32[3], aux %v: f32[3]) {
          %old = _copy(%m) : f32[3]
          %bn = BatchNorm(%x, %g, %t, %m, %v) {fix_gamma=False} : f32[4,3]
          %y = broadcast_sub(%bn, %old) : f32[4,3]
          return %y
        }
    """
    assert message(text, mode="training") == (
        "1 identities stay: they copy a state that another operator writes [old]"
    )
    assert len(run_pass(text, "remove-identities").graph) == 7


def test_a_copy_of_what_a_loss_layer_writes_a_gradient_of():
    text = """
        graph g(%x: f32[4,3,2], %y: f32[4,2]) {
          %a = _copy(%x) : f32[4,3,2]
          %b = _copy(%y) : f32[4,2]
          %z = SoftmaxOutput(%a, %b) {multi_output=True} : f32[4,3,2]
          return %z
        }
    """
    result = run_pass(text, "remove-identities", mode="training")
    assert [node.name for node in result.graph] == ["x", "a", "y", "z"]
    (why,) = [str(remark) for remark in result.remarks if str(remark).startswith("missed")]
    assert why.endswith("stay: loss layers write gradients where they should be added [a]")
    assert len(run_pass(text, "remove-identities").graph) == 3
    inner = text.replace("%a = _copy(%x)", "%t = tanh(%x) : f32[4,3,2]\n%a = _copy(%t)")
    assert len(run_pass(inner, "remove-identities", mode="training").graph) == 4


def test_the_order_of_gradient_sums():
    text = """
        graph g(%x: f32[8]) {
          %a = tanh(%x) : f32[8]
          %b = _copy(%a) : f32[8]
          %y = add_n(%a, %a, %b) {num_args=3} : f32[8]
          return %y
        }
    """
    assert message(text, mode="training", precise=True) == (
        "1 identities stay: gradients would be summed up in another order,"
        " which precise=True forbids [b]"
    )
    assert len(run_pass(text, "remove-identities", mode="training").graph) == 3
    two = text.replace("add_n(%a, %a, %b) {num_args=3}", "elemwise_add(%a, %b)")
    result = run_pass(two, "remove-identities", mode="training", precise=True)
    assert len(result.graph) == 3


# -- equivalence -----------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NEUTRAL)
def test_values_are_the_same(name, training):
    graph = around(NEUTRAL[name])
    mode = "training" if training else "inference"
    after = run_pass(graph, "remove-identities", mode=mode).graph
    assert_equivalent(graph, after, training=training, seeds=(0,))


@pytest.mark.parametrize("name", FORWARD)
def test_outputs_are_the_same(name):
    graph = around(FORWARD[name])
    assert_equivalent(graph, run_pass(graph, "remove-identities").graph, seeds=(0,))


@pytest.mark.parametrize("name", FORWARD)
def test_gradients_would_not_be_the_same(name):
    """What the refusals in training are for."""
    graph = around(FORWARD[name])
    with pytest.raises(GraphError, match="changed"):
        assert_equivalent(graph, run_pass(graph, "remove-identities").graph, training=True)


# -- contract --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", NEUTRAL)
def test_a_second_run_changes_nothing(name, mode):
    once = run_pass(around(NEUTRAL[name]), "remove-identities", mode=mode).graph
    assert run_pass(once, "remove-identities", mode=mode).graph is once


def _chain(length: int) -> Graph:
    graph = Graph()
    value = graph.add_input("x", type=TensorType("float32", (8,)))
    for number in range(length):
        op = "_copy" if number % 4 else "relu"
        value = graph.add(op, [value], name=f"n{number}", origin=(f"n{number}",))
    graph.set_outputs([value])
    return graph


def test_time_is_linear(work):
    graphs = {length: _chain(length) for length in (2_000, 4_000)}
    calls = {
        n: work(lambda g=g: RemoveIdentities().run(g, PassContext())) for n, g in graphs.items()
    }
    assert calls[4_000] < 2.3 * calls[2_000]


def test_one_reader_of_many_identities(work):
    def run(count: int) -> int:
        graph = Graph()
        x = graph.add_input("x", type=TensorType("float32", (8,)))
        a = graph.add("relu", [x], name="a")
        copies = [graph.add("_copy", [a], name=f"n{i}") for i in range(count)]
        graph.set_outputs([graph.add("add_n", copies, name="y")])
        return work(lambda: RemoveIdentities().run(graph, PassContext()))

    assert run(2_000) < 2.3 * run(1_000)
