"""Recurrences whose states meet no weight: nothing but the way of a state tells their steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE
from graphopt.ir.types import TensorType
from graphopt.passes.recurrence.feeds import Feeds
from graphopt.passes.recurrence.paths import path_anchors
from graphopt.passes.reroll_recurrence import RerollRecurrence
from graphopt.pipeline.base import PassContext
from graphopt.testing import assert_equivalent
from tests.passes.path_cells import (
    BATCH,
    CELLS,
    COLUMNS,
    PASSES,
    STEPS,
    Average,
    Cell,
    LearnedAverage,
    QrnnFo,
    QrnnIfo,
    Returns,
    Sru,
    Sum,
    count,
    remarks,
    rerolled,
    traced,
)
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn


@pytest.mark.parametrize(("last_only", "make"), one_of(2, itertools.product([False, True], CELLS)))
def test_cells(make: Callable[..., Cell], last_only: bool) -> None:
    graph = traced(make(last_only=last_only))
    result = rerolled(graph)
    assert count(result.graph) == 1
    assert_equivalent(graph, result.graph, training=True)


def test_what_steps_compute_besides_their_states_is_part_of_them() -> None:
    result = rerolled(traced(Sru()))
    ops = {node.op for node in result.graph if not node.is_input}
    assert ops == {"FullyConnected", RECURRENCE}


class Layers(Cell):
    """One layer on another, both unrolled together."""

    def unroll(self, F, x, state):
        found, upper = [], F.tanh(state)
        for row in self.rows(F, x):
            state = 0.1 * row + 0.9 * state
            upper = 0.1 * state + 0.9 * upper
            found.append(upper)
        return found


class Sentences(Sru):
    """Two sentences by the same layer, the second from the last state of the first."""

    def unroll(self, F, x, state):
        first = super().unroll(F, x, state)
        return super().unroll(F, F.flip(x, axis=0), first[-1])


@pytest.mark.parametrize("make", [Layers, Sentences])
def test_several_chains(make: Callable[..., Cell]) -> None:
    graph = traced(make())
    result = rerolled(graph)
    assert count(result.graph) == 2
    assert_equivalent(graph, result.graph, training=True)


# -- what stays ----------------------------------------------------------------------------------


class Residual(Cell):
    """Layers with weights of their own, each added to what is there."""

    def make(self):
        self.layers = [nn.Dense(COLUMNS, in_units=COLUMNS) for _ in range(STEPS)]
        for layer in self.layers:
            self.register_child(layer)

    def unroll(self, F, x, state):
        for layer in self.layers:
            state = state + F.relu(layer(state))
        return [state + F.mean(x, axis=0)]


class Branches(Residual):
    """A sum of branches with weights of their own."""

    def unroll(self, F, x, state):
        row = F.mean(x, axis=0)
        for layer in self.layers:
            state = state + F.relu(layer(row))
        return [state]


class Powers(Cell):
    """A sum of branches without weights that differ in a number."""

    def unroll(self, F, x, state):
        row = F.mean(x, axis=0)
        for step in range(STEPS):
            state = state + F.tanh((step + 2) * row)
        return [state]


class Iteration(Cell):
    """A square root by Newton's method: nothing is read but the state and one value."""

    def unroll(self, F, x, state):
        row, state = 1 + F.square(F.mean(x, axis=0)), 1 + F.square(state)
        for _ in range(STEPS):
            state = 0.5 * (state + row / state)
        return [state]


class TwoBack(Cell):
    """An autoregression of second order."""

    def unroll(self, F, x, state):
        before, found = F.tanh(state), []
        for row in self.rows(F, x):
            state, before = 0.5 * state - 0.2 * before + row, state
            found.append(state)
        return found


@pytest.mark.parametrize("make", [Residual, Branches, Powers, Iteration])
def test_what_is_no_recurrence_stays_without_a_word(make: Callable[..., Cell]) -> None:
    graph = traced(make())
    result = rerolled(graph)
    assert count(result.graph) == 0
    assert "unrolled" not in remarks(result)


def test_feeds_are_unlike_however_often_they_are_compared() -> None:
    graph = Graph("net")
    type_ = TensorType("float32", (BATCH, COLUMNS))
    own = [graph.add_input(f"w{n}", "param", type_).out() for n in range(3)]
    feeds = Feeds(graph)
    assert not feeds.are_alike([own])
    assert not feeds.are_alike([own])


def blocks(length: int) -> Graph:
    """Operators of one input, each number four times."""
    graph = Graph("net")
    type_ = TensorType("float32", (BATCH, COLUMNS))
    value = graph.add_input("x", "data", type_).out()
    for n in range(length):
        attrs = {"scalar": float(n // 4)}
        value = graph.add("_plus_scalar", [value], attrs, [type_], f"n{n}").out()
    graph.set_outputs([value])
    return graph


def test_iterations_take_linear_time(work) -> None:
    graphs = {length: blocks(length) for length in (1000, 2000)}
    calls = {
        n: work(lambda g=g: RerollRecurrence().run(g, PassContext())) for n, g in graphs.items()
    }
    assert calls[2000] < 2.3 * calls[1000]


def sums(count: int) -> Graph:
    """Sums of five terms that differ in a number."""
    graph = Graph("net")
    type_ = TensorType("float32", (BATCH, COLUMNS))
    x = graph.add_input("x", "data", type_).out()
    found = []
    for n in range(count):
        value = x
        for term in range(5):
            attrs = {"scalar": float(5 * n + term)}
            scaled = graph.add("_mul_scalar", [x], attrs, [type_], f"scaled{n}_{term}").out()
            value = graph.add("elemwise_add", [value, scaled], {}, [type_], f"n{n}_{term}").out()
        found.append(value)
    graph.set_outputs(found)
    return graph


def test_paths_are_looked_for_one_by_one(work) -> None:
    graphs = [averages(count) for count in (1, 20)]
    one, all_ = (work(lambda g=g: next(path_anchors(g))) / len(g) for g in graphs)
    assert all_ < one


def averages(count: int) -> Graph:
    """Moving averages of the same rows."""
    graph = Graph("net")
    type_ = TensorType("float32", (BATCH, COLUMNS))
    rows = [graph.add_input(f"x{n}", "data", type_).out() for n in range(10)]
    found = []
    for n in range(count):
        value = graph.add("tanh", [rows[0]], {}, [type_], f"h{n}").out()
        for step, row in enumerate(rows):
            kept = graph.add("_mul_scalar", [value], {"scalar": 0.5}, [type_], f"kept{n}_{step}")
            value = graph.add("elemwise_add", [kept, row], {}, [type_], f"n{n}_{step}").out()
        found.append(value)
    graph.set_outputs(found)
    return graph


def test_there_is_an_end_to_looking_in_vain() -> None:
    assert "too many" not in remarks(rerolled(sums(10)))
    result = rerolled(sums(200))
    assert "too many to look at all of them" in remarks(result)
    assert count(result.graph) == 0


def test_older_states_are_right() -> None:
    graph = traced(TwoBack())
    assert_equivalent(graph, rerolled(graph).graph, training=True)


class Stretched(Cell):
    """One row, of which each output is stretched to several."""

    def unroll(self, F, x, state):
        x, state = (F.slice_axis(v, axis=-2, begin=0, end=1) for v in (x, state))
        found = []
        for row in self.rows(F, x):
            state = F.sigmoid(row) * state + row
            found.append(F.tanh(F.broadcast_axis(state, axis=0, size=5)))
        return found


def test_rows_are_not_stretched_in_steps() -> None:
    graph = traced(Stretched())
    result = rerolled(graph)
    assert count(result.graph) == 1
    assert_equivalent(graph, result.graph, training=True)


def test_too_few_steps() -> None:
    assert count(rerolled(traced(Average(steps=3), 3)).graph) == 0


@pytest.mark.parametrize(
    ("make", "steps", "last_only", "expected"),
    [(Average, 6, True, 0), (Average, 6, False, 1), (Average, 30, True, 1), (Sru, 6, False, 1)],
)
def test_what_one_kernel_computes_is_left_to_it(
    make: Callable[..., Cell], steps: int, last_only: bool, expected: int
) -> None:
    graph = traced(make(steps=steps, last_only=last_only), steps)
    result = rerolled(graph, PASSES.replace("{leave_to_fusion=False}", ""))
    assert count(result.graph) == expected
    assert ("one kernel computes all of them" in remarks(result)) == (expected == 0)


class ReadApart(Cell):
    """What each step gives is read by another operator."""

    def unroll(self, F, x, state):
        found = []
        for number, row in enumerate(self.rows(F, x)):
            state = F.tanh(0.9 * state + 0.1 * row)
            found.append((F.sin, F.square, F.relu)[number % 3](state))
        return found


class ReadTwice(ReadApart):
    """The same of two steps, and all of them joined."""

    def unroll(self, F, x, state):
        found = []
        for row in self.rows(F, x):
            state = F.tanh(0.9 * state + 0.1 * row)
            found.append(state)
        return [*found, F.sin(found[3]), F.square(found[-1])]


@pytest.mark.parametrize(("make", "expected"), [(ReadApart, 0), (ReadTwice, 1)])
def test_steps_that_are_read_one_by_one_are_left_to_fusion(
    make: Callable[..., Cell], expected: int
) -> None:
    graph = traced(make(steps=30), 30)
    result = rerolled(graph, PASSES.replace("{leave_to_fusion=False}", ""))
    assert count(result.graph) == expected
    assert ("they are read one by one" in remarks(result)) == (expected == 0)


def test_many_elements_are_rolled_up_whoever_reads_them() -> None:
    graph = traced(ReadApart(steps=30), 30, batch=1100)
    result = rerolled(graph, PASSES.replace("{leave_to_fusion=False}", ""))
    assert count(result.graph) == 1


@pytest.mark.parametrize("make", [QrnnFo, QrnnIfo])
def test_an_output_gate_that_is_like_a_gate_of_the_state_is_taken(
    make: Callable[..., Cell],
) -> None:
    graph = traced(make())
    result = rerolled(graph)
    assert count(result.graph) == 1
    assert "elemwise_mul" not in {node.op for node in result.graph}
    assert_equivalent(graph, result.graph, training=True)


class Losses(Cell):
    """A loss of each step, added up."""

    def unroll(self, F, x, state):
        total = F.slice_axis(state, axis=1, begin=0, end=1)
        for row in self.rows(F, x):
            total = total + F.mean(F.log_softmax(row), axis=1, keepdims=True)
        return [total]


class Apart(Cell):
    """A sum of arrays that do not lie in one another in this order."""

    def unroll(self, F, x, state):
        rows = self.rows(F, x)
        for row in rows[::2] + rows[1::2]:
            state = state + row
        return [state]


@pytest.mark.parametrize("make", [Losses, Apart])
def test_bare_sums_stay(make: Callable[..., Cell]) -> None:
    graph = traced(make(steps=70), 70)
    result = rerolled(graph, PASSES.replace("{leave_to_fusion=False}", ""))
    assert count(result.graph) == 0
    assert "they do nothing but add up" in remarks(result)


def test_where_every_bit_counts() -> None:
    result = rerolled(traced(Sum()), precise=True)
    assert count(result.graph) == 0
    assert "rounded in another order" in remarks(result)


# -- against plain MXNet -------------------------------------------------------------------------


def trained(net: Any, batch: int) -> list[np.ndarray]:
    """Outputs, and gradients of inputs and parameters."""
    random = np.random.default_rng(batch)
    shapes = ((30, batch, COLUMNS), (batch, COLUMNS))
    fed = [mx.nd.array(random.uniform(-1, 1, shape)) for shape in shapes]
    for array in fed:
        array.attach_grad()
    with mx.autograd.record():
        outputs = net(*fed)
        loss = (outputs * mx.nd.array(random.uniform(-1, 1, outputs.shape))).sum()
    loss.backward()
    gradients = [p.grad() for _, p in sorted(net.collect_params().items())]
    again = net(*fed)
    return [array.asnumpy() for array in (outputs, *(a.grad for a in fed), *gradients, again)]


@pytest.mark.parametrize("make", [Sru, QrnnIfo, LearnedAverage, Returns])
def test_a_net_and_other_batches(make: Callable[..., Cell]) -> None:
    net = make(steps=30)
    net.initialize(mx.init.Uniform(0.7))
    optimized = graphopt.optimize(net)
    for batch in (3, 5):
        wanted, found = trained(net, batch), trained(optimized, batch)
        for want, got in zip(wanted, found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert "30 steps" in str(optimized.explain())
