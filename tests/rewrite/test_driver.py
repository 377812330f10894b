from __future__ import annotations

import pytest

from graphopt.errors import GraphError
from graphopt.ir.parser import parse
from graphopt.ir.verify import verify
from graphopt.pipeline.base import PassContext, Settings
from graphopt.rewrite import Mismatch, Rule, apply_rules
from graphopt.testing import assert_ir

CHAIN = """
graph g(%x: f32[2]) {
  %a = relu(%x) : f32[2]
  %b = relu(%a) : f32[2]
  %c = relu(%b) : f32[2]
  %d = exp(%c) : f32[2]
  return %d
}
"""


def drop_double(edit, node):
    inner = edit.producer(node.inputs[0], ("relu",))
    return None if inner is None else inner.out()


DROP = Rule("drop-double", ("relu",), drop_double)


def run(text, *rules, training=False, **options):
    cx = PassContext(Settings(mode="training" if training else "inference"))
    graph = parse(text)
    before = str(graph)
    result = apply_rules(graph, rules, cx, **options)
    assert str(graph) == before
    verify(result)
    return graph, result, cx


def test_rules_are_applied_until_none_fits():
    _, result, cx = run(CHAIN, DROP)
    assert_ir(
        result,
        """
        graph g(%x: f32[2]) {
          %a = relu(%x) : f32[2]
          %d = exp(%a) : f32[2]
          return %d
        }
        """,
    )
    assert cx.stats == {"drop-double": 2}
    assert [str(r.message) for r in cx.remarks] == ["applied drop-double, 2 times"]


def test_a_graph_that_no_rule_fits_is_returned_as_it_is():
    graph, result, cx = run(CHAIN, Rule("never", ("exp",), lambda edit, node: None))
    assert result is graph
    assert not cx.remarks


def test_the_first_rule_that_fits_wins():
    by_sigmoid = Rule("one", ("exp",), lambda e, n: e.add("sigmoid", n.inputs, like=n))
    by_tanh = Rule("two", ("exp",), lambda e, n: e.add("tanh", n.inputs, like=n))
    _, result, _ = run(CHAIN, by_sigmoid, by_tanh)
    assert result.find("d").op == "sigmoid"


def test_a_replacement_takes_name_origin_and_python_attributes():
    text = CHAIN.replace("exp(%c)", 'exp(%c) {__ctx_group__="dev1"}')
    rule = Rule("swap", ("exp",), lambda e, n: e.add("tanh", n.inputs, {"k": 1}, like=n))
    _, result, _ = run(text, rule)
    assert dict(result.find("d").attrs) == {"__ctx_group__": "dev1", "k": 1}
    assert result.find("d").op == "tanh"


def test_the_value_that_becomes_an_output_keeps_the_name_of_the_output():
    text = CHAIN.replace("return %d", "return %c").replace("  %d = exp(%c) : f32[2]\n", "")
    _, result, _ = run(text, DROP)
    assert result[result.outputs[0].node].name == "c"


def test_added_names_do_not_collide():
    def two(edit, node):
        inner = edit.add("tanh", node.inputs, like=node)
        return edit.add("sigmoid", (edit.add("tanh", (inner,), like=node),), like=node)

    _, result, _ = run(CHAIN, Rule("two", ("exp",), two))
    names = [node.name for node in result]
    assert len(set(names)) == len(names)
    assert result[result.outputs[0].node].name == "d"


def test_what_a_rule_added_before_it_refused_is_taken_away():
    def refuse(edit, node):
        edit.add("tanh", (edit.add("tanh", node.inputs, like=node),), like=node)
        raise Mismatch("not today")

    graph, result, cx = run(CHAIN, Rule("refuse", ("exp",), refuse))
    assert result is graph
    assert [(r.message, r.nodes) for r in cx.remarks] == [("refuse: not today", ("d",))]


def test_equal_refusals_are_one_remark():
    def refuse(edit, node):
        raise Mismatch("no")

    _, _, cx = run(CHAIN, Rule("keep", ("relu",), refuse))
    assert [(r.message, r.nodes) for r in cx.remarks] == [("keep: no, 3 times", ("a", "b", "c"))]


def test_rules_that_undo_each_other_raise():
    rules = (
        Rule("there", ("exp",), lambda e, n: e.add("tanh", n.inputs, like=n)),
        Rule("back", ("tanh",), lambda e, n: e.add("exp", n.inputs, like=n)),
    )
    with pytest.raises(GraphError, match=r"9 rewrites did not come to an end; the last was"):
        run(CHAIN, *rules, budget=9)


def test_a_rule_that_changes_a_type_raises():
    to_half = Rule(
        "wrong", ("exp",), lambda e, n: e.add("exp", n.inputs, type=n.type.with_shape((3,)), like=n)
    )
    with pytest.raises(GraphError, match=r"wrong made f32\[3\] of 'd', which is f32\[2\]"):
        run(CHAIN, to_half)


def test_an_input_is_never_returned_in_place_of_an_operator():
    text = "graph g(%x: f32[2]) {\n %a = relu(%x) : f32[2]\n return %a\n}"
    graph, result, cx = run(text, Rule("skip", ("relu",), lambda e, n: n.inputs[0]))
    assert result is graph
    assert cx.remarks[0].message == "skip: the graph would return its own input"


@pytest.mark.parametrize("training", [False, True])
def test_two_outputs_stay_two_values(training):
    text = """
    graph g(%x: f32[2]) {
      %a = relu(%x) : f32[2]
      %b = relu(%a) : f32[2]
      return %a, %b
    }
    """
    either = Rule(
        "drop", ("relu",), lambda e, n: None if e.node(n.inputs[0]).is_input else n.inputs[0]
    )
    _, result, cx = run(text, either, training=training)
    assert len(set(result.outputs)) == 2
    assert "whose gradient MXNet gets wrong" in str(cx.remarks)


def test_nodes_with_control_dependencies_stay():
    text = CHAIN.replace("%c = relu(%b)", "%c = relu(%b) after(%a)")
    _, result, _ = run(text, DROP)
    assert [n.op for n in result].count("relu") == 3


def test_what_does_more_than_compute_stays():
    text = """
    graph g(%x: f32[2]) {
      %u = SomeUnknownOp(%x) : f32[2]
      %b = relu(%u) : f32[2]
      return %b
    }
    """
    _, result, _ = run(
        text,
        Rule("cut", ("relu",), lambda e, n: e.add("tanh", [e.node(n.inputs[0]).inputs[0]], like=n)),
    )
    assert "SomeUnknownOp" in str(result)


def test_all_outputs_of_a_node_are_replaced_at_once():
    text = """
    graph g(%x: f32[2,2], %y: f32[2,2]) {
      %s = SliceChannel(%x) {num_outputs=2} : (f32[2,1], f32[2,1])
      %b = elemwise_add(%s#1, %s) : f32[2,1]
      return %b
    }
    """

    def halves(edit, node):
        return tuple(
            edit.add("slice_axis", node.inputs, {"axis": 1, "begin": i, "end": i + 1}, like=node)
            for i in range(2)
        )

    _, result, _ = run(text, Rule("halves", ("SliceChannel",), halves))
    assert_ir(
        result,
        """
        graph g(%x: f32[2,2], %y: f32[2,2]) {
          %s_2 = slice_axis(%x) {axis=1, begin=1, end=2} : f32[2,1]
          %s_1 = slice_axis(%x) {axis=1, begin=0, end=1} : f32[2,1]
          %b = elemwise_add(%s_2, %s_1) : f32[2,1]
          return %b
        }
        """,
    )
