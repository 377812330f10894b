from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graphopt.api.lifting import lift
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass

mx = import_mxnet()
STEPS, BATCH, COLUMNS, UNITS = 5, 3, 4, 6


class Loop(mx.gluon.HybridBlock):
    """A loop over the steps of a sequence; ``kind`` says over what."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        with self.name_scope():
            if kind in ("leaky", "a row for all"):
                self.dense = mx.gluon.nn.Dense(UNITS, in_units=COLUMNS + UNITS)
            else:
                self.cell = mx.gluon.rnn.LSTMCell(UNITS, input_size=COLUMNS)

    def hybrid_forward(self, F, x, h, c):
        def lstm(row, states):
            return self.cell(row, states)

        def leaky(row, states):
            made = F.tanh(self.dense(F.concat(row, states[0], dim=1))) * c
            return [made, states[0]], [0.5 * states[0] + made, states[1]]

        def random(row, states):
            return self.cell(row + F.random.uniform(shape=(BATCH, COLUMNS)), states)

        def rounding(row, states):
            whole = F.cast(F.cast(8 * states[0], "int32"), "float32") / 8
            return self.cell(row, [whole, states[1]])

        def row_for_all(row, states):
            made = F.tanh(self.dense(F.concat(row, states[0], dim=1)))
            return F.broadcast_mul(made, states[1]), [made, 0.5 * states[1]]

        bodies: dict[str, Callable[..., Any]] = {
            "lstm": lstm,
            "leaky": leaky,
            "random": random,
            "rounding": rounding,
            "a row for all": row_for_all,
        }
        body = bodies[self.kind]
        outputs, states = F.contrib.foreach(body, x, [h, c])
        outputs = outputs if isinstance(outputs, list) else [outputs]
        return (*outputs, *states)


def traced(kind: str) -> Graph:
    net = Loop(kind)
    net.initialize()
    net.hybridize()
    rows = 1 if kind == "a row for all" else BATCH
    shapes = {"data0": (STEPS, BATCH, COLUMNS), "data1": (BATCH, UNITS), "data2": (rows, UNITS)}
    net(*(mx.nd.ones(shape) for shape in shapes.values()))
    return lift(net, shapes=shapes)


def imported(graph: Graph, **settings: Any) -> Result:
    return run_pass(graph, "import-foreach", target=MXNetTarget(), **settings)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("kind", ["lstm", "leaky"])
def test_equals_the_loop(kind: str, mode: str) -> None:
    graph = traced(kind)
    result = imported(graph, mode=mode)
    ops = [node.op for node in result.graph]
    assert ops.count(RECURRENCE) == 1
    assert "_foreach" not in ops
    assert_equivalent(graph, result.graph, training=mode == "training")


def test_random_bodies_stay() -> None:
    graph = traced("random")
    result = imported(graph, mode="training")
    assert result.graph.is_unchanged_from(graph)
    assert "a recurrence cannot compute it" in "\n".join(map(str, result.remarks))


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_bodies_that_cast_to_integers_stay(mode: str) -> None:
    graph = traced("rounding")  # MXNet truncates the gradients, a kernel would have none
    result = imported(graph, mode=mode)
    assert result.graph.is_unchanged_from(graph)
    assert "it casts float32 to int32" in "\n".join(map(str, result.remarks))


def test_a_state_with_one_row_for_all_sequences_stays() -> None:
    graph = traced("a row for all")
    result = imported(graph, mode="training")
    assert result.graph.is_unchanged_from(graph)
    assert "(1, 6) has no row for each sequence" in "\n".join(map(str, result.remarks))


def test_where_every_bit_counts() -> None:
    graph = traced("lstm")
    result = imported(graph, precise=True)
    assert result.graph.is_unchanged_from(graph)
