"""Orders that need less memory: right, never worse, and better where that is possible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.errors import InputError
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.memory.check import check_packing
from graphopt.memory.memory_plan import plan
from graphopt.memory.order import _METHODS, _Dependencies, best_order, reordered
from graphopt.memory.schedule import forward_schedule
from tests.memory import arena
from tests.strategies.graphs import graphs


@st.composite
def sums(draw) -> Graph:
    """Products and sums of vectors, some of which nothing reads."""
    graph = Graph("sums")
    values = [graph.add_input("x", "data", TensorType("float32", (8,))).out()]
    for number in range(draw(st.integers(1, 30))):
        pair = [values[draw(st.integers(0, len(values) - 1))] for _ in range(2)]
        op = draw(st.sampled_from(["elemwise_add", "elemwise_mul", "mystery"]))
        after = [pair[0].node] if draw(st.integers(0, 9)) == 9 else []
        after = [node for node in after if not graph[node].is_input]
        type_ = TensorType("float32", (draw(st.sampled_from([1, 8, 64])),))
        values.append(graph.add(op, pair, types=(type_,), name=f"n{number}", after=after).out())
    graph.set_outputs(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    return graph


@given(sums())
def test_every_method_keeps_what_has_to_come_first(graph):
    schedule = forward_schedule(graph)
    dependencies = _Dependencies(schedule)
    for name, method in _METHODS.items():
        other = reordered(schedule, method(dependencies))  # refuses an order that is wrong
        ordered = [op.name for op in other.operations if op.ordered]
        assert ordered == [op.name for op in schedule.operations if op.ordered], name
    found = best_order(schedule)
    assert found.peak == min(found.peaks.values()) <= found.given_peak


@settings(max_examples=40)
@given(graphs(max_ops=12))
def test_random_graphs_run_in_their_arena_in_that_order(graph):
    feeds, expected = arena.reference_run(graph)
    made = plan(graph, compare=False, reorder=True, alignment=1)
    check_packing(made.buffers, made.offsets, made.arena)
    assert made.peak == made.order.peak
    for want, found in zip(expected, arena.run(graph, made, feeds), strict=True):
        np.testing.assert_array_equal(want, found)


WIDE = """\
graph wide(%x: f32[64]) {
  %a = mean(%x) {keepdims=True} : f32[1]
  %b = broadcast_to(%a) {shape=(64,)} : f32[64]
  %c = max(%x) {keepdims=True} : f32[1]
  %d = broadcast_to(%c) {shape=(64,)} : f32[64]
  %e = exp(%x) : f32[64]
  %f = dot(%e, %d) : f32[1]
  %g = dot(%b, %b) : f32[1]
  %h = elemwise_add(%g, %f) : f32[1]
  return %h
}
"""


def test_a_branch_that_leaves_little_goes_first():
    graph = parse(WIDE)
    given_peak = plan(graph, compare=False).peak
    made = plan(graph, reorder=True)
    assert made.order.given_peak == given_peak
    assert made.peak <= given_peak
    assert made.schedule.operations[-1].name == "h"


def test_demanding_inputs_go_first():
    graph = parse(
        """\
graph tree(%x: f32[1]) {
  %small = broadcast_to(%x) {shape=(10,)} : f32[10]
  %left = broadcast_to(%x) {shape=(99,)} : f32[99]
  %rest = slice_axis(%left) {axis=0, begin=0, end=10} : f32[10]
  %sum = mystery(%small, %rest) : f32[10]
  return %sum
}
"""
    )
    found = best_order(forward_schedule(graph))
    assert found.given_peak == 4 * (10 + 99 + 10)
    assert found.peak == 4 * (99 + 10)
    report = plan(graph).report()
    assert "reordered    peak 436 B (demanding inputs first)" in report


def test_a_wrong_order_is_refused():
    schedule = forward_schedule(parse(WIDE))
    with pytest.raises(InputError, match="an order of 8 operations has to name each of them once"):
        reordered(schedule, range(7))
    with pytest.raises(InputError, match="'b' cannot run before 'a'"):
        reordered(schedule, reversed(range(8)))
