"""Unrolled steps whose values have more axes than (batch, columns)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.api.lifting import lift
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass

mx = import_mxnet()
STEPS, BATCH, TAGS = 6, 3, 4

#: What a step makes of ``F``, its rows, the state, a square matrix and rows of each sequence.
Step = Callable[[Any, Any, Any, Any, Any], Any]


def log_sum_exp(F: Any, ways: Any, axis: int) -> Any:
    best = F.max(ways, axis=axis, keepdims=True)
    total = F.log(F.sum(F.exp(F.broadcast_sub(ways, best)), axis=axis))
    return total + F.squeeze(best, axis=axis)


def all_ways(F: Any, x: Any, h: Any, square: Any, rows: Any) -> Any:
    ways = F.broadcast_add(F.expand_dims(h, axis=2), F.expand_dims(square, axis=0))
    return log_sum_exp(F, ways, 1) + x


def all_ways_with_rows_inside(F: Any, x: Any, h: Any, square: Any, rows: Any) -> Any:
    ways = F.broadcast_add(F.expand_dims(h, axis=2), F.expand_dims(x, axis=1))
    return log_sum_exp(F, F.broadcast_add(ways, F.expand_dims(square, axis=0)), 1)


def best_way(F: Any, x: Any, h: Any, square: Any, rows: Any) -> Any:
    ways = F.broadcast_add(F.expand_dims(h, axis=2), F.expand_dims(square, axis=0))
    return F.max(ways, axis=1) + x


def best_way_to_each(F: Any, x: Any, h: Any, square: Any, rows: Any) -> Any:
    ways = F.broadcast_add(F.expand_dims(h, axis=1), F.expand_dims(square, axis=0))
    return F.min(ways, axis=2) + x


def gates_by_reshape(F: Any, x: Any, h: Any, square: Any, rows: Any) -> Any:
    both = F.concat(F.FullyConnected(h, square, no_bias=True, num_hidden=TAGS), x, dim=1)
    gate, new = F.split(F.reshape(both, (0, 2, -1)), num_outputs=2, axis=1, squeeze_axis=True)
    return F.sigmoid(gate) * F.tanh(new) + 0.5 * h


def chosen_rows(F: Any, x: Any, h: Any, square: Any, rows: Any) -> Any:
    asked = F.FullyConnected(h, square, no_bias=True, num_hidden=TAGS)
    met = F.broadcast_mul(rows, F.expand_dims(F.sigmoid(asked), axis=1))
    return F.tanh(F.sum(met, axis=1) + x)


STEP_KINDS = [
    all_ways,
    all_ways_with_rows_inside,
    best_way,
    best_way_to_each,
    gates_by_reshape,
    chosen_rows,
]


class Unrolled(mx.gluon.HybridBlock):
    """A step applied to every row of a sequence, the state masked as a row of another one says."""

    def __init__(
        self, step: Step, tags: int = TAGS, *, layout: str = "TNC", reverse: bool = False
    ) -> None:
        super().__init__()
        self.step, self.axis, self.reverse = step, layout.index("T"), reverse
        with self.name_scope():
            self.square = self.params.get("square", shape=(tags, tags))

    def hybrid_forward(self, F, x, valid, rows, square):
        cut = {"num_outputs": STEPS, "axis": self.axis, "squeeze_axis": True}
        given = list(zip(F.split(x, **cut), F.split(valid, **cut), strict=True))
        if self.reverse:
            given.reverse()
        state, states = given[0][0] + F.sum(rows, axis=1), []
        for row, is_valid in given:
            after = self.step(F, row, state, square, rows)
            gate = F.expand_dims(is_valid, axis=1)
            state = F.broadcast_mul(gate, after) + F.broadcast_mul(1 - gate, state)
            states.append(state)
        return F.stack(*states, axis=self.axis), state


def shapes(batch: int, tags: int, axis: int = 0) -> list[tuple[int, ...]]:
    """Of the rows of steps, of masks, and of what has rows for each sequence."""
    lead = (STEPS, batch) if axis == 0 else (batch, STEPS)
    return [(*lead, tags), lead, (batch, 3, tags)]


def traced(net: Unrolled, batch: int = BATCH, tags: int = TAGS) -> Graph:
    net.initialize(mx.init.Uniform(0.7))
    net.hybridize()
    given = shapes(batch, tags, net.axis)
    net(*map(mx.nd.ones, given))
    return lift(net, shapes={f"data{n}": shape for n, shape in enumerate(given)})


def rerolled(graph: Graph, mode: str = "training") -> Result:
    passes = "eliminate-dead-code,eliminate-common-subexpressions,reroll-recurrence"
    return run_pass(graph, passes, target=MXNetTarget(), mode=mode)


def recurrences(graph: Graph) -> int:
    return sum(node.op == RECURRENCE for node in graph)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("step", STEP_KINDS)
def test_steps(step: Step, mode: str) -> None:
    graph = traced(Unrolled(step))
    result = rerolled(graph, mode)
    assert recurrences(result.graph) == 1
    assert_equivalent(graph, result.graph, training=mode == "training")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize(("batch", "tags"), [(1, 3), (5, 9)])
def test_layouts(batch: int, tags: int, layout: str, reverse: bool) -> None:
    net = Unrolled(all_ways, tags, layout=layout, reverse=reverse)
    graph = traced(net, batch, tags)
    result = rerolled(graph)
    assert recurrences(result.graph) == 1
    assert_equivalent(graph, result.graph, training=True)


@pytest.mark.parametrize(
    ("tags", "reason"), [(40, "as the body of a loop: .* parts"), (20, "operators on rows, of 200")]
)
def test_too_many_tags_stay(tags: int, reason: str) -> None:
    result = rerolled(traced(Unrolled(all_ways, tags), tags=tags))
    assert recurrences(result.graph) == 0
    assert re.search(reason, "\n".join(map(str, result.remarks)))


def test_sequences_side_by_side_stay() -> None:
    def across(F: Any, x: Any, h: Any, square: Any, rows: Any) -> Any:
        best = F.max(F.expand_dims(h, axis=2), axis=0, keepdims=True)
        return F.dot(F.broadcast_add(h, F.squeeze(best, axis=2)), square) + x

    assert recurrences(rerolled(traced(Unrolled(across))).graph) == 0


@pytest.mark.parametrize("step", [all_ways, best_way])
def test_optimized(step: Step) -> None:
    """As plain MXNet does, also where all ways are equally good at first."""
    net = Unrolled(step)
    net.initialize(mx.init.Zero())
    fast = graphopt.optimize(net)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((STEPS, BATCH, TAGS))
    x[0] = 0
    valid = np.arange(STEPS)[:, None] < np.array([STEPS, 3, 1])
    given = [mx.nd.array(value) for value in (x, valid, np.zeros((BATCH, 3, TAGS)))]
    found = []
    for one in (net, fast):
        given[0].attach_grad()
        net.collect_params().zero_grad()
        with mx.autograd.record():
            states, last = one(*given)
            loss = (states * states).sum() + last.sum()
        loss.backward()
        found.append([states, last, given[0].grad.copy(), net.square.grad().copy()])
    for plain, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours.asnumpy(), plain.asnumpy(), rtol=1e-4, atol=1e-5)
    assert "became a recurrence" in fast.explain()
