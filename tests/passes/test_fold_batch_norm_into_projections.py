"""Numbers that fold-batch-norm moves up through views and products, to a projection."""

from __future__ import annotations

import pytest

from graphopt.backend.infer import with_types
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.testing import assert_equivalent
from tests.passes.fold_batch_norm_support import fold, live

ATTENTION = """
    graph g(%x: f32[2,5,8], param %u: f32[8,8], param %v: f32[8], param %w: f32[8,8]) {{
      %q = FullyConnected(%x, %u, %v) {{flatten=False, num_hidden=8}}
      %k = FullyConnected(%x, %w) {{flatten=False, no_bias=True, num_hidden=8}}
      %q1 = Reshape(%q) {{shape=(0, 0, 2, 4)}}
      %q2 = transpose(%q1) {{axes=(0, 2, 1, 3)}}
      %q3 = Reshape(%q2) {{shape=(-3, 0, 0)}}
      %k1 = Reshape(%k) {{shape=(0, 0, 2, 4)}}
      %k2 = transpose(%k1) {{axes=(0, 2, 1, 3)}}
      %k3 = Reshape(%k2) {{shape=(-3, 0, 0)}}
      %s = batch_dot(%q3, %k3) {{transpose_b=True}}
      %c = {scaling}
      %a = softmax(%c) {{axis=-1}}
      return {returned}
    }}
"""


def attention(scaling: str = "_mul_scalar(%s) {scalar=0.5}", returned: str = "%a") -> Graph:
    return with_types(parse(ATTENTION.format(scaling=scaling, returned=returned)))


@pytest.mark.parametrize("scaling", ["_mul_scalar(%s) {scalar=0.3}", "_contrib_div_sqrt_dim(%s)"])
def test_a_number_moves_up_to_a_projection(scaling):
    graph = attention(scaling)
    result = fold(graph)
    assert [n.op for n in result.graph if n.name in ("q", "c")] == ["FullyConnected", "batch_dot"]
    assert len(live(result)) == 10
    (remark,) = result.remarks
    assert remark.message == (
        "folded into the weights of the layer from which views and products lead to it"
    )
    assert remark.nodes[1:] == ("q",)
    assert result.graph.find("c").origin == ("s", "c")
    assert_equivalent(graph, result.graph)
    assert fold(result.graph).graph is result.graph


def test_a_number_moves_up_to_the_other_projection_if_one_is_read_elsewhere():
    graph = attention(returned="%a, %q2")
    result = fold(graph)
    assert result.remarks[0].nodes[1:] == ("k",)
    assert_equivalent(graph, result.graph)


@pytest.mark.parametrize(
    "graph",
    [
        attention(returned="%a, %s"),
        attention(returned="%a, %q, %k"),
        attention("_plus_scalar(%s) {scalar=0.5}"),
        attention("batch_dot(%s, %s)"),
    ],
    ids=["read product", "read layers", "shift", "no number"],
)
def test_what_does_not_move_up(graph):
    result = fold(graph)
    assert result.receipts[0].status == "unchanged"
    assert not result.remarks


def test_a_square_is_not_scaled_through_both_factors():
    graph = with_types(
        parse(
            "graph g(%x: f32[2,3,4], param %w: f32[4,4]) {"
            " %l = FullyConnected(%x, %w) {flatten=False, no_bias=True, num_hidden=4}"
            " %s = batch_dot(%l, %l) {transpose_b=True} %y = _mul_scalar(%s) {scalar=0.5}"
            " return %y }"
        )
    )
    assert fold(graph).receipts[0].status == "unchanged"
