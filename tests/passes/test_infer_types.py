from __future__ import annotations

import pytest

from graphopt.backend.target import MXNetTarget
from graphopt.errors import PassError
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.passes.infer_types import InferTypes
from graphopt.pipeline.base import PassContext
from graphopt.testing import assert_equivalent, assert_ir, run_pass

MLP = """
    graph mlp(%x: f32[8,4], param %w: ?, param %b: ?) {
      %fc = FullyConnected(%x, %w, %b) {num_hidden=3}
      %two = SliceChannel(%fc) {axis=0, num_outputs=2} : (?, ?)
      return %two#1
    }
"""


class Fixed:
    """A target that answers what it is told to, by name."""

    def __init__(self, **types: TensorType) -> None:
        self.types = types

    def infer_types(self, graph):
        return {n.id: (self.types[n.name],) for n in graph if n.name in self.types}

    def evaluate(self, graph, feeds, *, training=False, gradients=False):
        raise NotImplementedError


# -- golden ----------------------------------------------------------------------------------


def test_example(example):
    before, after = example(InferTypes)
    assert run_pass(before, "infer-types", target=MXNetTarget()).graph == after


def test_parameters_and_all_outputs_get_types():
    result = run_pass(MLP, "infer-types", target=MXNetTarget())
    assert_ir(
        result,
        """
        graph mlp(%x: f32[8,4], param %w: f32[3,4], param %b: f32[3]) {
          %fc = FullyConnected(%x, %w, %b) {num_hidden=3} : f32[8,3]
          %two = SliceChannel(%fc) {axis=0, num_outputs=2} : (f32[4,3], f32[4,3])
          return %two#1
        }
        """,
    )
    assert result.receipts[0].stats == {"typed": 5}


def test_the_number_of_outputs_is_corrected():
    text = """
        graph g(%x: f32[8,4]) {
          %two = SliceChannel(%x) {axis=0, num_outputs=2}
          return %two
        }
    """
    result = run_pass(text, "infer-types", target=MXNetTarget())
    assert [str(t) for t in result.graph.find("two").types] == ["f32[4,4]", "f32[4,4]"]


def test_what_the_target_leaves_open_stays():
    text = "graph g(%x: ?) {\n %y = mystery(%x) : f32[?,4]\n return %y\n}"
    target = Fixed(x=TensorType("float32"), y=TensorType(None, (8, None)))
    graph = run_pass(text, "infer-types", target=target).graph
    assert str(graph.find("x").type) == "f32[*]"
    assert str(graph.find("y").type) == "f32[8,4]"


def test_a_new_type_wins():
    text = "graph g(%x: f32[8]) {\n %y = mystery(%x) : f32[4]\n return %y\n}"
    target = Fixed(y=TensorType("float16", (9, 9)))
    assert str(run_pass(text, "infer-types", target=target).graph.find("y").type) == "f16[9,9]"


# -- refusals --------------------------------------------------------------------------------


def test_without_a_target():
    result = run_pass(MLP, "infer-types")
    assert result.receipts[0].status == "unchanged"
    assert [str(r) for r in result.remarks] == [
        "missed: infer-types: types are incomplete, and there is no target to infer them"
    ]


def test_without_a_target_and_nothing_to_infer():
    assert not run_pass("graph g(%x: f32[8]) {\n return %x\n}", "infer-types").remarks


def test_unknown_inputs_are_named():
    text = "graph g(%x: ?, %z: f32[2]) {\n %y = relu(%x)\n return %y, %z\n}"
    result = run_pass(text, "infer-types", target=MXNetTarget())
    assert [str(r) for r in result.remarks] == [
        "missed: infer-types: 2 nodes have no static type; give the shapes of inputs [x]"
    ]


def test_unknown_operators_are_named():
    text = "graph g(%x: f32[8]) {\n %y = mystery(%x)\n return %y\n}"
    result = run_pass(text, "infer-types", target=Fixed())
    assert [str(r) for r in result.remarks] == [
        "missed: infer-types: 1 nodes have no static type though all inputs do [y]"
    ]


def test_contradicting_types_name_the_node():
    text = """
        graph g(%x: f32[8], %y: f32[9]) {
          %sum = elemwise_add(%x, %y)
          return %sum
        }
    """
    with pytest.raises(PassError, match="inputs of node 'sum'"):
        run_pass(text, "infer-types", target=MXNetTarget())


# -- equivalence -----------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_values_are_the_same(training):
    before = run_pass(MLP, "infer-types", target=MXNetTarget()).graph
    untyped = before.copy()
    for node in before:
        if not node.is_input:
            untyped.update(node.but(types=(TensorType(),) * len(node.types)))
    after = run_pass(untyped, "infer-types", target=MXNetTarget()).graph
    assert after == before
    assert_equivalent(untyped, after, training=training)


# -- contract --------------------------------------------------------------------------------


def test_a_second_run_changes_nothing():
    target = MXNetTarget()
    once = run_pass(MLP, "infer-types", target=target).graph
    assert run_pass(once, "infer-types", target=target).graph is once


def test_time_is_linear(work):
    class Same(Fixed):
        def infer_types(self, graph):
            return {node.id: (TensorType("float32", (8,)),) for node in graph}

    def run(length: int) -> int:
        graph = Graph()
        value = graph.add_input("x", type=TensorType("float32", (8,)))
        for number in range(length):
            value = graph.add("relu", [value], name=f"n{number}")
        graph.set_outputs([value])
        return work(lambda: InferTypes().run(graph, PassContext(target=Same())))

    assert run(4_000) < 2.3 * run(2_000)


def test_nested_graphs_stay_as_they_are():
    text = """
        graph g(%x: f32[8]) {
          %loop = mystery(%x) : f32[8] [
            graph body(%h: ?) {
              %y = relu(%h)
              return %y
            }
          ]
          return %loop
        }
    """
    graph = parse("\n".join(text.splitlines()[1:]).strip())
    assert run_pass(graph, "infer-types", target=Fixed()).graph is graph
