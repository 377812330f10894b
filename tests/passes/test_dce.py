from __future__ import annotations

import pytest

from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.passes.dce import EliminateDeadCode
from graphopt.pipeline.base import PassContext
from graphopt.testing import assert_equivalent, assert_ir, run_pass

DROPOUT = """
    graph g(%x: f32[8]) {
      %y = relu(%x) : f32[8]
      %dead = Dropout(%y) {p=0.5} : f32[8]
      return %y
    }
"""


# -- golden ----------------------------------------------------------------------------------


def test_example(example):
    before, after = example(EliminateDeadCode)
    assert run_pass(before, "dce").graph == after


def test_chains_and_shared_inputs():
    result = run_pass(
        """
        graph g(%x: f32[8], param %unread: f32[3]) {
          %a = relu(%x) : f32[8]
          %b = exp(%a) : f32[8]
          %c = elemwise_add(%b, %b) : f32[8]
          %d = SliceChannel(%c) {axis=0, num_outputs=2} : (f32[4], f32[4])
          %y = negative(%a) : f32[8]
          return %y
        }
        """,
        "dce",
    )
    assert_ir(
        result,
        """
        graph g(%x: f32[8], param %unread: f32[3]) {
          %a = relu(%x) : f32[8]
          %y = negative(%a) : f32[8]
          return %y
        }
        """,
    )
    assert result.receipts[0].stats == {"erased": 3}


def test_dropout_is_pure_at_inference_only():
    assert "dead" not in str(run_pass(DROPOUT, "dce").graph)
    training = run_pass(DROPOUT, "dce", mode="training")
    assert training.receipts[0].status == "unchanged"
    assert [str(r) for r in training.remarks] == [
        "missed: eliminate-dead-code: 1 operators that no output needs stay,"
        " for they may have effects [dead]"
    ]


def test_an_unread_constant_goes():
    text = """
        graph g(%x: f32[2]) {
          %c = constant() {data="AAAAAAAAAAA=", dtype="float32", shape=(2,)} : f32[2]
          return %x
        }
    """
    assert len(run_pass(text, "dce").graph) == 1


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "effect",
    [
        "%dead = mystery(%a) : f32[8]",
        '%dead = Custom(%a) {op_type="mine"} : f32[8]',
        "%dead = _random_normal_like(%a) : f32[8]",
        "%dead = sgd_update(%a, %a) {lr=0.1} : f32[8]",
        "%dead = exp(%a) after(%x) : f32[8]",
        "%dead = relu(%a) : f32[8] [\n graph body(%h: f32[8]) {\n return %h\n }\n ]",
    ],
)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_effects_stay_with_what_they_read(effect, mode):
    text = f"""
        graph g(%x: f32[8]) {{
          %y = relu(%x) : f32[8]
          %a = exp(%x) : f32[8]
          {effect}
          return %y
        }}
    """
    result = run_pass(text, "dce", mode=mode)
    assert result.receipts[0].status == "unchanged"
    assert "may have effects [dead]" in str(result.remarks[0])


def test_what_an_output_has_to_run_after_stays():
    text = """
        graph g(%x: f32[8]) {
          %a = exp(%x) : f32[8]
          %y = relu(%x) after(%a) : f32[8]
          return %y
        }
    """
    assert run_pass(text, "dce").receipts[0].status == "unchanged"


def test_batch_norm_moves_its_statistics_in_training():
    text = """
        graph g(%x: f32[4,3], param %g: f32[3], param %b: f32[3], aux %m: f32[3], aux %v: f32[3]) {
          %dead = BatchNorm(%x, %g, %b, %m, %v) {fix_gamma=False} : f32[4,3]
          %y = relu(%x) : f32[4,3]
          return %y
        }
    """
    assert run_pass(text, "dce", mode="training").receipts[0].status == "unchanged"
    assert run_pass(text, "dce").receipts[0].status == "changed"


# -- equivalence -----------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_values_are_the_same(training):
    graph = parse(
        """
        graph g(%x: f32[8,4], param %w: f32[3,4], param %u: f32[8,3]) {
          %fc = FullyConnected(%x, %w) {no_bias=True, num_hidden=3} : f32[8,3]
          %dead = elemwise_mul(%fc, %u) : f32[8,3]
          %y = tanh(%fc) : f32[8,3]
          return %y, %fc
        }
        """.strip()
    )
    after = run_pass(graph, "dce", mode="training" if training else "inference").graph
    assert len(after) == len(graph) - 1
    assert_equivalent(graph, after, training=training)


# -- contract --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_second_run_changes_nothing(mode):
    once = run_pass(DROPOUT, "dce", mode=mode).graph
    assert run_pass(once, "dce", mode=mode).graph is once


def _chain(length: int) -> Graph:
    """Every second operator is dead."""
    graph = Graph()
    value = graph.add_input("x", type=TensorType("float32", (8,)))
    for number in range(length // 2):
        graph.add("exp", [value], name=f"dead{number}")
        value = graph.add("relu", [value], name=f"n{number}")
    graph.set_outputs([value])
    return graph


def test_time_is_linear(work):
    graphs = {length: _chain(length) for length in (2_000, 4_000)}
    calls = {
        n: work(lambda g=g: EliminateDeadCode().run(g, PassContext())) for n, g in graphs.items()
    }
    assert calls[4_000] < 2.3 * calls[2_000]
