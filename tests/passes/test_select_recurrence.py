"""select-recurrence: the measuring is replaced, what it decides is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import graphopt
from graphopt.backend import tuning
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE, Node
from graphopt.ir.parser import parse
from graphopt.kernels.products import BY_UNIT, IN_PAIRS
from graphopt.passes.select_recurrence import SelectRecurrence
from graphopt.testing import assert_equivalent, run_pass

mx = import_mxnet()


class Clock(MXNetTarget):
    """A target with a matrix unit, by which a recurrence takes 1 ms; by vectors as long as told."""

    def __init__(self, ms: float = 0.5, *, means: str | None = BY_UNIT) -> None:
        self.ms = ms
        self.means = means
        self.timed: list[Graph] = []

    def dense_means(self) -> str | None:
        return self.means

    def measured_once(self, parts, measure, place=()):
        return measure()

    def times_ms(self, graphs: Sequence[Graph], *, training: bool = False) -> list[float]:
        super().times_ms(graphs, training=training)  # they can be run
        self.timed += graphs
        return [self.ms if any(map(by_vectors, graph)) else 1.0 for graph in graphs]


def by_vectors(node: Node) -> bool:
    return node.op == RECURRENCE and node.attrs.flag("by_vectors")


def net(*, batch: int = 17, dtype: str = "f32", lengths: bool = False) -> Graph:
    """An LSTM of 100 units over 50 columns as a recurrence."""
    size = 4 * 100 * 150 + 8 * 100
    state = f"{dtype}[1,{batch},100]"
    more = f", %n: i32[{batch}]" if lengths else ""
    text = f"""
        graph g(%x: {dtype}[40,{batch},50], param %p: {dtype}[{size}], %h: {state},
                %c: {state}{more}) {{
          %r = RNN(%x, %p, %h, %c{", %n" if lengths else ""}) {{mode="lstm", num_layers=1,
               state_size=100{", use_sequence_length=True" if lengths else ""}}}
               : {dtype}[40,{batch},100]
          return %r
        }}"""
    return run_pass(parse(text), "import-rnn{measure=False}", target=MXNetTarget()).graph


def chosen(graph: Graph, clock: Clock, **settings: object) -> Graph:
    return run_pass(graph, "select-recurrence", target=clock, **settings).graph


def test_example(example) -> None:
    before, after = example(SelectRecurrence)
    assert chosen(before, Clock()) == after
    assert_equivalent(before, after, seeds=(0,))


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("lengths", [False, True])
def test_vectors_multiply_where_they_are_faster(mode: str, lengths: bool) -> None:
    before, clock = net(lengths=lengths), Clock(0.9)
    result = run_pass(before, "select-recurrence", target=clock, mode=mode)
    (node,) = filter(by_vectors, result.graph)
    assert_equivalent(before, result.graph, seeds=(0,))
    told = "by vectors 0.9 ms, by the matrix unit 1 ms for 32 of its 40 steps"
    assert [r.message for r in result.remarks] == [told]
    assert not any(map(by_vectors, chosen(before, Clock(0.97), mode=mode)))
    # The two that are timed differ in that alone.
    unit, vectors = (next(n for n in g if n.op == RECURRENCE) for g in clock.timed)
    assert vectors.attrs == unit.attrs.set(by_vectors=True)
    assert unit.attrs == node.attrs.without("by_vectors", "lengths")
    again = chosen(result.graph, clock, mode=mode)
    assert again == result.graph
    assert len(clock.timed) == 2


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (net(batch=15), "15 rows with 60000 weights are few"),
        (net(dtype="f64"), "they are of float64"),
        (net(), "by vectors 2 ms, by the matrix unit 1 ms"),
    ],
)
def test_left_alone(graph: Graph, why: str) -> None:
    result = run_pass(graph, "select-recurrence", target=Clock(2.0))
    assert result.graph == graph
    assert why in result.remarks[0].message


@pytest.mark.parametrize("means", [None, IN_PAIRS])
def test_without_a_unit_nothing_is_measured(means: str | None) -> None:
    graph, clock = net(), Clock(means=means)
    assert chosen(graph, clock) == graph
    assert not clock.timed


@pytest.mark.parametrize("more", [{"precise": True}, {"device": "gpu"}])
def test_refused(more: dict[str, Any]) -> None:
    graph, clock = net(), Clock()
    assert chosen(graph, clock, **more) == graph
    assert not clock.timed


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("embedded", [False, True])
def test_nets_train_and_infer(layout: str, embedded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a recurrence reads what it reads, in both modes."""
    monkeypatch.setattr(tuning, "MXNetTarget", Clock)
    block = mx.gluon.nn.HybridSequential()
    if embedded:
        block.add(mx.gluon.nn.Embedding(30, 60))
    block.add(graphopt.nn.LSTM(100, layout=layout, input_size=60, bidirectional=True))
    block.initialize(mx.init.Xavier())
    shape = (20, 18) if embedded else (20, 18, 60)
    x = mx.nd.random.randint(0, 30, shape) if embedded else mx.nd.random.normal(shape=shape)
    fast = graphopt.optimize(block)
    found = [step(fast, x), step(block, x)]
    for got, right in zip(*found, strict=True):
        assert abs(got - right).max() < 1e-5 * (1 + abs(right).max())
    told = fast.explain()
    assert told.count("by vectors 0.5 ms, by the matrix unit 1 ms") == 2


def step(block: Any, x: Any) -> list[Any]:
    """Outputs in inference and in training, and the gradients."""
    outputs = [block(x).asnumpy()]
    with mx.autograd.record():
        y = block(x)
    y.backward()
    grads = [p.grad().asnumpy() for p in block.collect_params().values()]
    return [*outputs, y.asnumpy(), *grads]
