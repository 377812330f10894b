"""Facts about graphs: what is frozen, how much there is, what has effects."""

import pytest

from graphopt.analysis.effects import (
    behind_rivals,
    has_foreign_operators,
    held_nodes,
    is_noticed,
    is_pure,
    may_draw,
    may_repeat,
    written_values,
)
from graphopt.analysis.frozen import frozen_nodes
from graphopt.analysis.metrics import Meter, Metrics, measure
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType

NET = """
graph g(%x: f32[2,3], param %w: f32[4,3], param %gamma: f32[4], param %beta: f32[4],
        aux %mean: f32[4], aux %var: f32[4], param %unread: f32[9]) {
  %k = constant() {data="AAAAAA==", dtype="float32", shape=(1,)} : f32[1]
  %w2 = _mul_scalar(%w) {scalar=2.0} : f32[4,3]
  %noise = _random_normal() {shape=(4, 3)} : f32[4,3]
  %w3 = elemwise_add(%w2, %noise) : f32[4,3]
  %drop = Dropout(%w2) : f32[4,3]
  %fc = FullyConnected(%x, %w2) {no_bias=True, num_hidden=4} : f32[2,4]
  %bn = BatchNorm(%fc, %gamma, %beta, %mean, %var) {fix_gamma=False} : f32[2,4]
  %flat = Reshape(%bn) {shape=(-1,)} : f32[8]
  %who = mystery(%w2) : f32[2]
  %y = broadcast_add(%flat, %k) : f32[8]
  return %y, %w3, %drop, %who
}"""


def frozen(text):
    graph = parse(text)
    return {graph[node].name for node in frozen_nodes(graph)}


def test_frozen_is_what_no_data_reaches():
    assert frozen(NET) >= {"w", "gamma", "mean", "unread", "k", "w2"}
    assert not frozen(NET) & {"x", "fc", "bn", "flat", "y"}


def test_random_mutating_and_unknown_operators_are_never_frozen():
    assert not frozen(NET) & {"noise", "w3", "who"}
    assert "s" not in frozen(
        """
        graph g(param %w: f32[2], aux %m: f32[2], aux %v: f32[2]) {
          %s = BatchNorm(%w, %w, %w, %m, %v) : f32[2]
          return %s
        }"""
    )


def test_ordered_and_nested_nodes_are_not_frozen():
    text = "graph g(param %w: ?) {{ %a = relu(%w) %b = relu(%w) {} %c = tanh(%b) return %c, %a }}"
    assert frozen(text.format("")) == {"w", "a", "b", "c"}
    assert frozen(text.format("after(%a)")) == {"w", "a"}
    assert frozen(text.format("[graph n(%s: ?) { return %s }]")) == {"w", "a"}


def test_metrics():
    graph = parse(NET)
    assert measure(graph) == Metrics(
        nodes=10,
        calls=8,  # not the constant, not the view
        parameters=12 + 4 * 4,
        # w2, noise, fc, bn: graph outputs left out
        intermediate_bytes=4 * (12 + 12 + 8 + 8),
        unknown_types=0,
    )
    once = measure(graph, frozen=True)
    assert once.nodes == 10
    assert once.calls == 7
    assert once.intermediate_bytes == 4 * (12 + 8 + 8)
    assert once.as_dict() == {
        "nodes": 10,
        "calls": 7,
        "parameters": 28,
        "intermediate_bytes": 112,
        "unknown_types": 0,
    }


@pytest.mark.parametrize("frozen", [False, True])
def test_a_meter_that_knows_some_nodes_counts_the_others_anew(frozen):
    graph, meter = parse(NET), Meter(frozen=frozen)
    assert meter.measure(graph) == measure(graph, frozen=frozen)
    other = graph.copy()
    other.update(graph.find("fc").but(types=(TensorType("float64", (2, 5)),)))
    other.set_outputs(other.outputs[:1])
    assert meter.measure(other) == measure(other, frozen=frozen)
    assert meter.measure(other).intermediate_bytes > meter.measure(graph).intermediate_bytes


def test_unknown_types_count_as_no_bytes():
    found = measure(parse("graph g(%x: ?) { %a = relu(%x) %b = relu(%a) return %b }"))
    assert (found.unknown_types, found.intermediate_bytes, found.calls) == (2, 0, 2)


@pytest.mark.parametrize(
    ("line", "inference", "training"),
    [
        ("relu(%x)", True, True),
        ("Dropout(%x)", True, False),
        ('Dropout(%x) {mode="always"}', False, False),
        ("_random_normal() {shape=(2,)}", False, False),
        ("BatchNorm(%x, %x, %x, %m, %m) {fix_gamma=False}", True, False),
        ("sgd_update(%x, %x)", False, False),
        ("mystery(%x)", False, False),
        ("relu(%x) after(%x)", False, False),
        ("relu(%x) [graph n(%s: ?) { return %s }]", False, False),
        ("constant()", True, True),
    ],
)
def test_purity(line, inference, training):
    graph = parse(f"graph g(%x: ?, aux %m: ?) {{ %a = {line} return %a }}")
    node = graph.find("a")
    assert is_pure(node, training=False) == inference
    assert is_pure(node, training=True) == training
    assert is_pure(graph.find("x"), training=True)


def test_held_nodes_are_those_that_others_run_after():
    graph = parse("graph g(%x: ?) { %a = relu(%x) %b = relu(%x) after(%a, %x) return %b }")
    assert held_nodes(graph) == {graph.find("a").id, graph.find("x").id}


def test_behind_rivals():
    text = """
        graph g(%x: f32[2,4], param %w: f32[4], aux %m: f32[4], aux %v: f32[4]) {{
          %a = {0} : f32[2,4]
          %b = tanh(%a) : f32[2,4]
          %c = {1} : f32[2,4]
          %d = tanh(%c) : f32[2,4]
          return %b, %d
        }}"""
    norm = "BatchNorm(%x, %w, %w, %m, %v) {fix_gamma=False}"
    graph = parse(text.format(norm, norm))
    names = {graph[node].name for node in behind_rivals(graph, training=True)}
    assert names == {"a", "b", "c", "d"}
    assert not behind_rivals(graph, training=False)
    assert not behind_rivals(parse(text.format(norm, "exp(%x)")), training=True)


def test_written_values():
    graph = parse(NET)
    names = {graph[v.node].name for v in written_values(graph, training=True)}
    assert names >= {"mean", "var"}
    assert not names & {"x", "w", "fc", "beta"}
    assert not written_values(graph, training=False) & {graph.find("mean").out()}


NORMED = "%y = BatchNorm(%x, %g, %b, %m, %v)"


@pytest.mark.parametrize(
    ("node", "repeats", "draws"),
    [
        ("%y = tanh(%x)", "both", "never"),
        ("%y = mystery(%x)", "never", "both"),
        ('%y = Custom(%x) {op_type="mine"}', "never", "both"),
        ("%y = sgd_mom_update(%x, %g, %m)", "never", "never"),
        ("%y = _random_normal() {shape=(2,)}", "both", "both"),
        ("%y = Dropout(%x)", "both", "training"),
        (NORMED, "inference", "never"),
    ],
)
def test_what_another_call_changes(node, repeats, draws):
    inputs = "%x: f32[2,3], param %g: f32[3], param %b: f32[3], aux %m: f32[3], aux %v: f32[3]"
    graph = parse(f"graph g({inputs}) {{ {node} return %y }}")
    for mode in ("training", "inference"):
        is_training = mode == "training"
        assert may_repeat(graph, training=is_training) == (repeats in (mode, "both"))
        assert may_draw(graph, training=is_training) == (draws in (mode, "both"))


@pytest.mark.parametrize("op", ["tanh(%k)", "mystery(%k)", 'Custom(%k) {op_type="mine"}'])
def test_constants_are_no_operators_of_users(op):
    constant = '%k = constant() {data="AAAAAA==", dtype="float32", shape=(1,)} : f32[1]'
    graph = parse(f"graph g() {{ {constant} %y = {op} return %y }}")
    assert has_foreign_operators(graph) == (op != "tanh(%k)")
    assert [node.name for node in graph if is_noticed(node, training=True)] == (
        [] if op == "tanh(%k)" else ["y"]
    )
