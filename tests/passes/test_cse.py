from __future__ import annotations

import pytest

from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.passes.cse import EliminateCommonSubexpressions
from graphopt.pipeline.base import PassContext
from graphopt.testing import assert_equivalent, assert_ir, run_pass


def pair(op: str, attrs: str = "", inputs: str = "%x, %z", types: str = "f32[8]") -> str:
    """Two equal nodes and a sum of them."""
    return f"""
        graph g(%x: f32[8], %z: f32[8], aux %state: f32[8]) {{
          %a = {op}({inputs}) {attrs} : {types}
          %b = {op}({inputs}) {attrs} : {types}
          %y = elemwise_add(%a, %b) : f32[8]
          return %y
        }}
    """


def status(text: str, **settings: object) -> str:
    return run_pass(text, "cse", **settings).receipts[0].status


def reason(text: str, **settings: object) -> str:
    """Why nothing was merged."""
    result = run_pass(text, "cse", **settings)
    assert result.receipts[0].status == "unchanged"
    (remark,) = result.remarks
    assert remark.message.startswith("1 repeated operators stay: ")
    assert remark.nodes == ("b",)
    return remark.message.partition(": ")[2]


# -- golden ----------------------------------------------------------------------------------


def test_example(example):
    before, after = example(EliminateCommonSubexpressions)
    assert run_pass(before, "cse").graph == after


def test_merging_goes_on_behind_what_was_merged():
    result = run_pass(
        """
        graph g(%x: f32[8]) {
          %a1 = relu(%x) : f32[8]
          %a2 = relu(%x) : f32[8]
          %s1 = SliceChannel(%a1) {axis=0, num_outputs=2} : (f32[4], f32[4])
          %s2 = split(%a2) {axis=0, num_outputs=2} : (f32[4], f32[4])
          %y = elemwise_sub(%s1#1, %s2) : f32[4]
          return %y
        }
        """,
        "cse",
    )
    assert_ir(
        result,
        """
        graph g(%x: f32[8]) {
          %a1 = relu(%x) : f32[8]
          %s1 = SliceChannel(%a1) {axis=0, num_outputs=2} : (f32[4], f32[4])
          %y = elemwise_sub(%s1#1, %s1) : f32[4]
          return %y
        }
        """,
    )
    assert result.receipts[0].stats == {"merged": 2}


def test_names_and_dunder_attributes_do_not_count():
    text = """
        graph g(%x: f32[8]) {
          %a = relu(%x) {__lr_mult__="2", __profiler_scope__="a:"} : f32[8]
          %b = relu(%x) {__profiler_scope__="b:"} : f32[8]
          %y = elemwise_add(%a, %b) : f32[8]
          return %y
        }
    """
    assert_ir(
        run_pass(text, "cse"),
        """
        graph g(%x: f32[8]) {
          %a = relu(%x) {__lr_mult__="2", __profiler_scope__="a:"} : f32[8]
          %y = elemwise_add(%a, %a) : f32[8]
          return %y
        }
        """,
    )


def test_a_graph_output_keeps_its_name():
    result = run_pass(
        """
        graph g(%x: f32[8]) {
          %a = relu(%x) : f32[8]
          %z = exp(%a) : f32[8]
          %out = relu(%x) : f32[8]
          return %out, %z
        }
        """,
        "cse",
    )
    assert_ir(
        result,
        """
        graph g(%x: f32[8]) {
          %out = relu(%x) : f32[8]
          %z = exp(%out) : f32[8]
          return %out, %z
        }
        """,
    )


def test_origins_are_joined():
    graph = Graph()
    x = graph.add_input("x", type=TensorType("float32", (8,)))
    nodes = [graph.add("relu", [x], name=n, origin=(n,)) for n in ("a", "b", "c")]
    graph.set_outputs([graph.add("add_n", nodes, name="sum")])
    assert run_pass(graph, "cse").graph.find("a").origin == ("a", "b", "c")


def test_equal_constants_and_creations_merge():
    constant = '%{} = constant() {{data="AAAAAAAAAAA=", dtype="float32", shape=(2,)}} : f32[2]\n'
    zeros = "%{} = _zeros() {{shape=(2,)}} : f32[2]\n"
    for template in (constant, zeros):
        text = "graph g() {\n" + template.format("a") + template.format("b")
        text += "%y = elemwise_add(%a, %b) : f32[2]\n return %y\n}"
        assert len(run_pass(text, "cse").graph) == 2


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("relu(%x)", "exp(%x)"),
        ("relu(%x)", "relu(%z)"),
        ("elemwise_sub(%x, %z)", "elemwise_sub(%z, %x)"),
        ("_plus_scalar(%x) {scalar=1}", "_plus_scalar(%x) {scalar=2}"),
        ('relu(%x) {__ctx_group__="a"}', 'relu(%x) {__ctx_group__="b"}'),
    ],
)
def test_different_nodes(first, second):
    text = f"""
        graph g(%x: f32[8], %z: f32[8]) {{
          %a = {first} : f32[8]
          %b = {second} : f32[8]
          %y = elemwise_add(%a, %b) : f32[8]
          return %y
        }}
    """
    result = run_pass(text, "cse")
    assert result.receipts[0].status == "unchanged"
    assert not result.remarks


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_effects(mode):
    random = pair("_random_normal", "{shape=(8,)}", "")
    assert reason(random, mode=mode) == "they draw random numbers in this mode"
    opaque = "the operator is opaque and may have effects"
    assert reason(pair("mystery"), mode=mode) == opaque
    assert reason(pair("Custom", '{op_type="mine"}'), mode=mode) == opaque
    nested = pair("relu", inputs="%x").replace(
        "%y =", "%n = relu(%x) [graph f(%h: ?) { return %h }]\n %m = relu(%x) after(%n)\n%y ="
    )
    assert len(run_pass(nested, "cse", mode=mode).graph) == len(parse(nested.strip())) - 1


def test_dropout_draws_in_training_only():
    text = pair("Dropout", "{p=0.5}", "%x")
    assert status(text) == "changed"
    assert reason(text, mode="training") == "they draw random numbers in this mode"
    assert reason(pair("Dropout", '{mode="always", p=0.5}', "%x")).startswith("they draw")


def test_batch_norm_writes_its_statistics_in_training():
    text = """
        graph g(%x: f32[4,3], param %g: f32[3], param %t: f32[3], aux %m: f32[3], aux %v: f32[3]) {
          %a = BatchNorm(%x, %g, %t, %m, %v) {fix_gamma=False} : f32[4,3]
          %b = BatchNorm(%x, %g, %t, %m, %v) {fix_gamma=False} : f32[4,3]
          %y = elemwise_add(%a, %b) : f32[4,3]
          return %y
        }
    """
    assert status(text) == "changed"
    assert reason(text, mode="training") == "they write their inputs in this mode"


def test_readers_of_a_state_that_is_written():
    text = """
        graph g(%x: f32[4,3], param %g: f32[3], param %t: f32[3], aux %m: f32[3], aux %v: f32[3]) {
          %a = square(%m) : f32[3]
          %bn = BatchNorm(%x, %g, %t, %m, %v) {fix_gamma=False} : f32[4,3]
          %b = square(%m) : f32[3]
          return %a, %bn, %b
        }
    """.replace("return %a, %bn, %b", "%y = elemwise_add(%a, %b) : f32[3]\n return %y, %bn")
    assert status(text) == "changed"
    assert reason(text, mode="training") == (
        "they read a state that another operator writes in between"
    )


def test_losses_in_training():
    text = pair("SoftmaxOutput", "{}", "%x, %z")
    assert status(text) == "changed"
    assert reason(text, mode="training") == (
        "a loss ignores the gradients that merging would add up"
    )


def test_ties_of_swapped_maximum_in_training():
    text = pair("_maximum").replace("%b = _maximum(%x, %z)", "%b = _maximum(%z, %x)")
    assert status(text) == "changed"
    assert status(text, mode="training") == "unchanged"
    assert status(pair("_maximum"), mode="training") == "changed"


def test_creations_without_a_static_type():
    text = pair("_zeros", "{shape=(0,)}", "", "f32[?]")
    assert reason(text) == "their shape is not known, and their users may give them different ones"


def test_two_outputs_keep_a_name_each():
    result = run_pass(
        """
        graph g(%x: f32[8]) {
          %a = relu(%x) : f32[8]
          %b = relu(%x) {__ctx_group__="one"} : f32[8]
          %c = relu(%x) : f32[8]
          %d = relu(%x) : f32[8]
          %e = exp(%c) : f32[8]
          %f = _copy(%a) : f32[8]
          return %a, %b, %c, %d, %e, %f
        }
        """,
        "cse",
    )
    assert_ir(
        result,
        """
        graph g(%x: f32[8]) {
          %a = relu(%x) : f32[8]
          %b = relu(%x) {__ctx_group__="one"} : f32[8]
          %c = _copy(%a) : f32[8]
          %d = _copy(%c) : f32[8]
          %e = exp(%a) : f32[8]
          %f = _copy(%d) : f32[8]
          return %a, %b, %c, %d, %e, %f
        }
        """,
    )
    assert run_pass(result.graph, "cse").graph is result.graph


def test_two_outputs_of_several_results_stay():
    types = "(f32[4], f32[4])"
    text = pair("SliceChannel", "{axis=0, num_outputs=2}", "%x", types)
    text = text.replace("return %y", "return %y, %a, %b").replace(
        "f32[8]\n          ret", "f32[4]\n          ret"
    )
    assert reason(text) == "each is a graph output with a name of its own"


LOOKUPS = """
    graph g(param %w: f32[4,3]) {
      %i = constant() {data="AAAAAAAAAEAAAABA", dtype="float32", shape=(3,)} : f32[3]
      %a = Embedding(%i, %w) {dtype="float32", input_dim=4, output_dim=3} : f32[3,3]
      %j = constant() {data="AAAAAAAAAEAAAABA", dtype="float32", shape=(3,)} : f32[3]
      %b = Embedding(%j, %w) {dtype="float32", input_dim=4, output_dim=3} : f32[3,3]
      return %a, %b
    }
"""


@pytest.mark.parametrize("precise", [False, True])
def test_outputs_that_equal_constants_make_equal(precise: bool):
    """MXNet's executors refuse to learn by two equal lookups that are both outputs."""
    graph = parse(LOOKUPS.strip())
    result = run_pass(graph, "cse", mode="training", precise=precise)
    assert result.receipts[0].status == ("unchanged" if precise else "changed")
    assert_equivalent(graph, result.graph, training=True)


def test_precise_gradients():
    text = pair("tanh", inputs="%x")
    assert reason(text, mode="training", precise=True) == (
        "merging would round gradients differently, and precise=True forbids that"
    )
    assert status(text, mode="inference", precise=True) == "changed"
    assert status(pair("floor", inputs="%x"), mode="training", precise=True) == "changed"


def test_control_dependencies():
    text = """
        graph g(%x: f32[8]) {
          %a = relu(%x) : f32[8]
          %b = relu(%x) : f32[8]
          %c = exp(%b) after(%b) : f32[8]
          %y = elemwise_add(%a, %c) : f32[8]
          return %y
        }
    """
    assert status(text) == "unchanged"


# -- equivalence -----------------------------------------------------------------------------

SIAMESE = """
    graph siamese(%x: f32[4,6], %z: f32[4,6], param %w: f32[6,6]) {
      %fa = FullyConnected(%x, %w) {no_bias=True, num_hidden=6} : f32[4,6]
      %fb = FullyConnected(%x, %w) {no_bias=True, num_hidden=6} : f32[4,6]
      %ta = tanh(%fa) : f32[4,6]
      %tb = tanh(%fb) : f32[4,6]
      %ma = elemwise_mul(%ta, %z) : f32[4,6]
      %mb = elemwise_mul(%z, %tb) : f32[4,6]
      %sa = SliceChannel(%ma) {axis=1, num_outputs=2} : (f32[4,3], f32[4,3])
      %sb = SliceChannel(%mb) {axis=1, num_outputs=2} : (f32[4,3], f32[4,3])
      %max = _maximum(%sa, %sb#1) : f32[4,3]
      %max2 = _maximum(%sb#1, %sa) : f32[4,3]
      %sum = add_n(%max, %max2, %ta_half, %sb) {num_args=4} : f32[4,3]
      %y = SoftmaxOutput(%sum, %label) : f32[4,3]
      return %y, %tb
    }
"""


@pytest.mark.parametrize("training", [False, True])
def test_values_are_the_same(training):
    text = SIAMESE.replace(
        "%sum =", "%ta_half = slice_axis(%tb) {axis=1, begin=0, end=3} : f32[4,3]\n%sum ="
    ).replace("%z: f32[4,6],", "%z: f32[4,6], %label: f32[4],")
    graph = parse(text.strip())
    result = run_pass(graph, "cse", mode="training" if training else "inference")
    assert result.receipts[0].stats == {"merged": 4 if training else 5}
    assert result.graph[result.graph.outputs[1].node].name == "tb"
    assert_equivalent(graph, result.graph, training=training)


def test_merged_losses_would_lose_gradients():
    """What the refusal of losses in training is for."""
    text = pair("MakeLoss", inputs="%x")
    merged = run_pass(text, "cse").graph
    with pytest.raises(Exception, match="changed grad:x"):
        assert_equivalent(parse(text.strip()), merged, training=True)


# -- contract --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_second_run_changes_nothing(mode):
    once = run_pass(pair("elemwise_mul"), "cse", mode=mode).graph
    assert run_pass(once, "cse", mode=mode).graph is once


def _twins(length: int) -> Graph:
    """Two equal chains that meet at the end."""
    graph = Graph()
    x = graph.add_input("x", type=TensorType("float32", (8,)))
    ends = []
    for side in "ab":
        value = x
        for number in range(length // 2):
            value = graph.add("relu", [value], name=f"{side}{number}", origin=(f"{side}{number}",))
        ends.append(value)
    graph.set_outputs([graph.add("elemwise_add", ends, name="y")])
    return graph


def test_time_is_linear(work):
    graphs = {length: _twins(length) for length in (2_000, 4_000)}
    calls = {
        n: work(lambda g=g: EliminateCommonSubexpressions().run(g, PassContext()))
        for n, g in graphs.items()
    }
    assert calls[4_000] < 2.3 * calls[2_000]


def test_many_twins_of_one_node(work):
    def run(count: int) -> int:
        graph = Graph()
        x = graph.add_input("x", type=TensorType("float32", (8,)))
        nodes = [graph.add("relu", [x], name=f"n{i}", origin=(f"n{i}",)) for i in range(count)]
        graph.set_outputs([graph.add("add_n", nodes, name="y")])
        calls = work(lambda: EliminateCommonSubexpressions().run(graph, PassContext()))
        assert len(run_pass(graph, "cse").graph) == 3
        return calls

    assert run(2_000) < 2.3 * run(1_000)
