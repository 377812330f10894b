from __future__ import annotations

import pytest

from graphopt.analysis.frozen import frozen_nodes
from graphopt.backend.infer import with_types
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.passes.merge_parallel_gemm import MergeParallelGemm
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, assert_ir, run_pass


def net(body: str, x: str = "f32[8,4]", *, weights: str = "f32[3,4] f32[2,4]") -> Graph:
    """A graph of data, weights ``w0`` ... and biases ``b0`` ..., types inferred."""
    given = ", ".join(
        f"param %w{n}: {type_}, param %b{n}: ?" for n, type_ in enumerate(weights.split())
    )
    return with_types(parse(f"graph g(%x: {x}, {given}) {{ {body} }}"))


def fc(name: str, number: int, units: int, attrs: str = "", x: str = "%x") -> str:
    biased = "no_bias" not in attrs
    inputs = f"{x}, %w{number}, %b{number}" if biased else f"{x}, %w{number}"
    return f"%{name} = FullyConnected({inputs}) {{num_hidden={units}{attrs}}}\n"


def merge(graph: Graph | str, options: str = "{min_layers=2}", **settings: object) -> Result:
    return run_pass(graph, f"merge-parallel-gemm{options}", **{"frozen": True, **settings})


def live(result: Result) -> list[str]:
    """Operators that depend on the data, in order."""
    frozen = frozen_nodes(result.graph)
    return [n.op for n in result.graph if n.id not in frozen and not n.is_input]


def refused(graph: Graph, options: str = "{min_layers=2}", **settings: object) -> list[str]:
    """Why a graph stays as it is."""
    result = merge(graph, options, **settings)
    assert result.receipts[0].status in ("unchanged", "refused")
    return [remark.message for remark in result.remarks]


# -- golden ----------------------------------------------------------------------------------


def test_example(example):
    before, after = example(MergeParallelGemm)
    result = merge(before, "")
    assert result.graph == after
    assert_equivalent(before, result.graph)
    (remark,) = result.remarks
    assert remark.message == "merged into one product of 6 units"
    assert remark.nodes == ("a", "b", "c")
    assert result.receipts[0].stats == {"merged": 3}


def test_a_missing_bias_becomes_zeros():
    result = merge(
        """
        graph net(%x: f32[2,5,4], param %v: f32[3,4], param %w: f32[2,4], param %b: f32[3]) {
          %p = FullyConnected(%x, %v, %b) {flatten=False, num_hidden=3} : f32[2,5,3]
          %q = FullyConnected(%x, %w) {flatten=False, no_bias=True, num_hidden=2} : f32[2,5,2]
          return %q, %p
        }
        """
    )
    assert_ir(
        result,
        """
        graph net(%x: f32[2,5,4], param %v: f32[3,4], param %w: f32[2,4], param %b: f32[3]) {
          %q_merged_weight = Concat(%w, %v) {dim=0, num_args=2} : f32[5,4]
          %q_merged_zeros = _zeros() {dtype="float32", shape=(2,)} : f32[2]
          %q_merged_bias = Concat(%q_merged_zeros, %b) {dim=0, num_args=2} : f32[5]
          %q_merged = FullyConnected(%x, %q_merged_weight, %q_merged_bias)
            {flatten=False, no_bias=False, num_hidden=5} : f32[2,5,5]
          %q = slice_axis(%q_merged) {axis=2, begin=0, end=2} : f32[2,5,2]
          %p = slice_axis(%q_merged) {axis=2, begin=2, end=5} : f32[2,5,3]
          return %q, %p
        }
        """,
    )
    assert result.graph.find("q_merged").origin == ("q", "p")


# -- equivalence -----------------------------------------------------------------------------

MERGED = {
    "biases": (fc("p", 0, 3) + fc("q", 1, 2), {}),
    "no biases": (fc("p", 0, 3, ", no_bias=True") + fc("q", 1, 2, ", no_bias=True"), {}),
    "flattened input": (
        fc("p", 0, 3) + fc("q", 1, 2),
        {"x": "f32[4,2,3]", "weights": "f32[3,6] f32[2,6]"},
    ),
    "last axis": (
        fc("p", 0, 3, ", flatten=False") + fc("q", 1, 2, ", flatten=False"),
        {"x": "f32[4,2,3]", "weights": "f32[3,3] f32[2,3]"},
    ),
    "two axes: flatten says nothing": (fc("p", 0, 3, ", flatten=False") + fc("q", 1, 2), {}),
    "three, equal widths": (
        fc("p", 0, 2) + fc("r", 1, 2) + fc("s", 2, 2) + "%q = elemwise_mul(%r, %s)",
        {"weights": "f32[2,4] f32[2,4] f32[2,4]"},
    ),
    "one weight twice": (fc("p", 0, 3) + fc("q", 0, 3), {}),
    "double": (fc("p", 0, 3) + fc("q", 1, 2), {"x": "f64[8,4]", "weights": "f64[3,4] f64[2,4]"}),
}


@pytest.mark.parametrize("case", MERGED)
def test_equivalence(case):
    body, types = MERGED[case]
    graph = net(f"{body} %y = relu(%p) return %y, %q, %p", **types)
    result = merge(graph)
    assert live(result).count("FullyConnected") == 1
    assert_equivalent(graph, result.graph)


def test_groups_on_different_inputs_stay_apart():
    body = fc("p", 0, 3) + fc("q", 1, 2) + "%z = relu(%x)" + fc("s", 0, 3, "", "%z")
    graph = net(f"{body} {fc('t', 1, 2, '', '%z')} return %p, %q, %s, %t")
    result = merge(graph)
    assert live(result).count("FullyConnected") == 2
    assert result.receipts[0].stats == {"merged": 4}
    assert_equivalent(graph, result.graph)


# -- refusals --------------------------------------------------------------------------------


def test_many_rows_do_not_pay():
    graph = net(fc("p", 0, 3) + fc("q", 1, 2) + "return %p, %q", x="f32[129,4]")
    assert refused(graph) == [
        "not merged: with 129 rows one product saves less than copying its parts costs"
        " (max_rows=128)"
    ]
    result = merge(graph, "{max_rows=200,min_layers=2}")
    assert result.receipts[0].status == "changed"
    assert_equivalent(graph, result.graph)


def test_two_layers_gain_too_little():
    graph = net(fc("p", 0, 3) + fc("q", 1, 2) + "return %p, %q")
    assert refused(graph, "") == ["not merged: 2 layers gain too little (min_layers=3)"]


@pytest.mark.parametrize("attrs", ['Activation({0}) {{act_type="relu"}}', "exp({0})"])
def test_what_onednn_computes_together_stays_together(attrs):
    layers = "".join(fc(name, 0, 3) for name in "pqr")
    y = attrs.format("%p")
    graph = net(f"{layers} %y = {y} return %y, %q, %r")
    result = merge(graph)
    assert [remark.message for remark in result.remarks] == [
        f"not merged: oneDNN computes 'y' ({graph.find('y').op}) together with it",
        "merged into one product of 6 units",
    ]
    assert_equivalent(graph, result.graph)


def test_a_layer_that_is_read_elsewhere_too_is_merged():
    layers = "".join(fc(name, 0, 3) for name in "pq")
    graph = net(f"{layers} %y = exp(%p) return %y, %p, %q")
    result = merge(graph)
    assert result.receipts[0].stats == {"merged": 2}
    assert_equivalent(graph, result.graph)


def test_unknown_rows():
    text = """
        graph g(%x: f32[?,4], param %v: f32[3,4], param %w: f32[2,4]) {
          %p = FullyConnected(%x, %v) {no_bias=True, num_hidden=3} : f32[?,3]
          %q = FullyConnected(%x, %w) {no_bias=True, num_hidden=2} : f32[?,2]
          return %p, %q
        }
    """
    reason = "not merged: the number of rows of their input is not known"
    assert refused(parse(text)) == [reason]
    assert refused(parse(text.replace(" : f32[?,3]", ""))) == [reason]


def test_a_weight_that_depends_on_data():
    graph = net(
        "%v = relu(%x) %p = FullyConnected(%x, %v) {num_hidden=8, no_bias=True}"
        f" {fc('q', 1, 2)} return %p, %q"
    )
    assert refused(graph) == ["not merged: 'v' depends on data"]


def test_other_flatten():
    graph = net(
        fc("p", 0, 3) + fc("q", 1, 2, ", flatten=False") + "return %p, %q",
        x="f32[4,2,3]",
        weights="f32[3,6] f32[2,3]",
    )
    assert refused(graph) == [
        "not merged: no other layer has a float32 weight of width 6, flatten=True",
        "not merged: no other layer has a float32 weight of width 3, flatten=False",
    ]


def test_control_dependencies():
    graph = net(
        fc("p", 0, 3) + "%q = FullyConnected(%x, %w1, %b1) {num_hidden=2} after(%p) return %p, %q"
    )
    assert refused(graph) == ["not merged: a control dependency names it"] * 2


def test_the_data_of_one_is_the_weight_of_another():
    graph = net(
        "%p = FullyConnected(%w0, %w1) {num_hidden=2, no_bias=True}"
        "%q = FullyConnected(%x, %w0) {num_hidden=3, no_bias=True} return %p, %q"
    )
    result = merge(graph)
    assert result.graph is graph
    assert not result.remarks


# -- contract --------------------------------------------------------------------------------


def test_modes():
    graph = net(fc("p", 0, 3) + fc("q", 1, 2) + "return %p, %q")
    assert refused(graph, mode="training") == ["it would change what training computes"]
    assert refused(graph, frozen=False) == ["it needs frozen parameters: use mode='inference'"]
    assert refused(graph, precise=True) == [
        "a wider product may round differently, which precise=True does not allow"
    ]


def test_a_second_run_changes_nothing():
    graph = net(fc("p", 0, 3) + fc("q", 1, 2) + "return %p, %q")
    once = merge(graph).graph
    assert merge(once).graph is once
    assert [n.name for n in once.inputs] == [n.name for n in graph.inputs]


def test_cost_is_linear(work):
    def chain(length: int) -> Graph:
        body = "".join(
            f"%p{i} = FullyConnected(%x{i}, %w) {{no_bias=True, num_hidden=2}} : f32[1,2]"
            f" %q{i} = FullyConnected(%x{i}, %w) {{no_bias=True, num_hidden=2}} : f32[1,2]"
            f" %x{i + 1} = elemwise_add(%p{i}, %q{i}) : f32[1,2]\n"
            for i in range(length)
        )
        return parse(f"graph g(%x0: f32[1,2], param %w: f32[2,2]) {{ {body} return %x{length} }}")

    small, large = chain(100), chain(200)
    assert work(lambda: merge(large)) < 2.3 * work(lambda: merge(small))
