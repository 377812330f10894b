"""Plans of forward graphs and of training steps."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from hypothesis import given, settings

import graphopt
from graphopt.backend import reference
from graphopt.backend.random_feeds import random_feeds
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.parser import parse
from graphopt.memory.check import check_packing
from graphopt.memory.memory_plan import learned, plan
from graphopt.memory.report import amount
from graphopt.memory.training import training_graph
from graphopt.pipeline.instruments import compare
from tests.memory import arena
from tests.memory.nets import NETS, mlp, residual
from tests.places import data_folder
from tests.strategies.graphs import graphs

pytest.importorskip("mxnet")

FOLDER = data_folder() / "symbols"
PUBLISHED = ("det1", "squeezenet_v1.1", "resnet18_v1", "symbol_lenet-cpp")


@settings(max_examples=60)
@given(graphs(max_ops=12))
def test_random_graphs_run_in_their_arena(graph):
    feeds, expected = arena.reference_run(graph)
    for inplace in (True, False):
        made = plan(graph, inplace=inplace, compare=False, alignment=16)
        check_packing(made.buffers, made.offsets, made.arena, 16)
        assert made.peak <= made.arena
        for want, found in zip(expected, arena.run(graph, made, feeds), strict=True):
            np.testing.assert_array_equal(want, found)


def test_a_net_in_its_arena_computes_what_mxnet_does():
    symbol, shapes = residual(after=True)
    graph = lift_symbol(symbol, shapes)
    feeds = random_feeds(graph)
    made = plan(graph)
    found = arena.run(graph, made, feeds)
    expected = MXNetTarget().evaluate(graph, feeds, training=False, gradients=False)
    compare(expected, {f"output{i}": array for i, array in enumerate(found)}, where="arena")
    assert made.arena < made.rows[1].nbytes < made.rows[0].nbytes


def test_a_place_freed_too_early_shows():
    graph = lift_symbol(*residual())
    feeds = random_feeds(graph)
    made = plan(graph, compare=False)
    made.buffers.upper.setflags(write=True)
    add = made.schedule.numbers[graph.find("add0").out()]
    made.buffers.upper[made.liveness.buffer_of[add]] -= 1
    assert np.isnan(arena.run(graph, made, feeds)[0]).any()


@pytest.mark.parametrize("name", NETS)
def test_training_plans_overlap_nowhere(name):
    symbol, shapes = NETS[name]()
    made = plan(symbol, training=True, shapes=shapes, alignment=1)
    check_packing(made.buffers, made.offsets, made.arena)
    operations = made.schedule.operations
    owner = {}  # buffer -> tensor it holds, as the step goes
    last = {n: at for at, step in enumerate(operations) for n in step.reads}
    for at, step in enumerate(operations):
        for tensor in step.reads:
            buffer = made.liveness.buffer_of[tensor]
            if buffer >= 0:
                assert owner[buffer] == tensor
                assert made.buffers.lower[buffer] <= at < made.buffers.upper[buffer]
        for tensor in step.writes:
            buffer = made.liveness.buffer_of[tensor]
            if buffer >= 0:
                if buffer in owner:
                    assert last[owner[buffer]] <= at
                    assert made.schedule.tensors[owner[buffer]].nbytes == (
                        made.schedule.tensors[tensor].nbytes
                    )
                owner[buffer] = tensor
    for number, tensor in enumerate(made.schedule.tensors):
        if tensor.escapes and not tensor.outside:
            assert owner[made.liveness.buffer_of[number]] == number
    names = [row.name for row in made.rows]
    assert names == [
        "nothing shared",
        "in place only",
        "sharing only",
        "both",
        "forward only",
    ]
    nothing, own, sharing, both, forward = made.rows
    assert nothing.nbytes >= own.nbytes >= both.nbytes >= both.lower_bound
    assert nothing.nbytes >= sharing.nbytes >= sharing.lower_bound >= both.lower_bound
    assert forward.nbytes <= both.nbytes


def test_gradients_may_be_counted():
    symbol, shapes = mlp()
    outside = plan(symbol, training=True, shapes=shapes, compare=False)
    inside = plan(symbol, training=True, shapes=shapes, compare=False, gradients=True)
    assert outside.schedule.given["gradients"] == 4 * (4 * 5 + 4 + 3 * 4 + 3)
    assert "gradients" not in inside.schedule.given
    assert inside.peak > outside.peak
    made = plan(training_graph(symbol, shapes), gradients=True)
    assert [row.name for row in made.rows][-1] == "both"


@pytest.mark.parametrize("training", [False, True])
def test_mxnet_works_in_place_as_the_plan_says(training):
    """Where it shares nothing else, its sum and ours are of the same blocks."""
    symbol, _ = residual(after=True)
    made = plan(symbol, training=training, shapes={"data": (32, 3, 64, 64)})
    (alone,) = [row for row in made.rows if row.name == "in place only"]
    both = next(row for row in made.rows if row.name == "both")
    assert alone.reported > both.reported > 0
    if training:  # forward, MXNet fuses
        assert alone.reported <= alone.nbytes < alone.reported + (1 << 20)
    else:
        assert alone.reported <= alone.nbytes


def test_a_block_is_planned_by_its_own_names():
    mx = import_mxnet()
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(4, in_units=3, activation="tanh"), mx.gluon.nn.Dense(2))
    made = plan(net, training=True, shapes={"data": (5, 3)})
    assert {"net_dense0", "net_dense1"} <= {t.layer for t in made.schedule.tensors}
    assert "data" in {t.name for t in made.schedule.tensors}
    with pytest.raises(InputError, match="give the shape of every input"):
        plan(net)


def test_a_graph_is_planned_as_it_trains():
    """Recurrences keep what backward needs, and kernels work apart."""
    mx = import_mxnet()
    layer = mx.gluon.rnn.LSTM(8, input_size=6)
    layer.initialize()
    fast = graphopt.optimize(layer, memory="1GB")
    with mx.autograd.record():
        fast(mx.nd.ones((7, 300, 6)))
    made = plan(fast.graph("training"), training=True)
    assert {step.phase for step in made.schedule.operations} == {"forward", "backward"}
    (entry,) = fast.graphopt_state.compiled.entries
    assert made.reported_bytes == entry.lowered._engine.megabytes << 20


def test_what_gets_a_gradient_by_default():
    graph = lift_symbol(*mlp())
    assert list(learned(graph)) == ["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]


def test_views_are_no_storage_of_their_own():
    graph = parse(
        """\
graph views(%x: f32[4,8]) {
  %same = Reshape(%x) {shape=(32,)} : f32[32]
  %a = exp(%x) : f32[4,8]
  %d = tanh(%a) : f32[4,8]
  %b = Reshape(%a) {shape=(32,)} : f32[32]
  %c = Reshape(%b) {shape=(8, 4)} : f32[8,4]
  %e = relu(%c) : f32[8,4]
  return %same, %d, %e
}
"""
    )
    made = plan(graph, compare=False)
    assert [
        [made.schedule.tensors[n].name for n in members] for members in made.liveness.members
    ] == [["a", "b", "c", "e"], ["d"]]
    assert made.arena == made.peak == 256
    feeds = random_feeds(graph)
    for want, found in zip(reference.run(graph, feeds), arena.run(graph, made, feeds), strict=True):
        np.testing.assert_array_equal(want, found)


def test_an_output_is_not_overwritten_by_what_reads_it_last():
    graph = parse(
        """\
graph last(%x: f32[8]) {
  %a = exp(%x) : f32[8]
  %unused = relu(%a) : f32[8]
  return %a
}
"""
    )
    assert plan(graph, compare=False).peak == 64


def test_an_opaque_operator_takes_over_nothing():
    graph = parse(
        """\
graph opaque(%x: f32[8]) {
  %a = exp(%x) : f32[8]
  %b = mystery(%a) : f32[8]
  %c = relu(%b) : f32[8]
  return %c
}
"""
    )
    made = plan(graph, compare=False)
    assert [len(members) for members in made.liveness.members] == [1, 2]
    assert made.peak == 64


def test_what_only_parameters_reach_is_not_counted_once_frozen():
    graph = parse(
        """\
graph frozen(%x: f32[8], param %w: f32[8]) {
  %v = exp(%w) : f32[8]
  %y = elemwise_mul(%x, %v) : f32[8]
  return %y
}
"""
    )
    assert plan(graph, compare=False).peak == 32  # in place of v
    made = plan(graph, compare=False, frozen=True)
    assert [op.name for op in made.schedule.operations] == ["y"]


def test_a_graph_without_operators_has_an_empty_plan():
    made = plan(parse("graph g(%x: f32[2]) {\n  return %x\n}\n"))
    assert (made.arena, made.peak, made.peak_step, made.residents) == (0, 0, 0, ())
    assert "(nothing runs)" in made.report()
    assert made.to_csv().count("\n") == 1


def test_the_report_names_the_peak():
    symbol, shapes = residual()
    made = plan(symbol, training=True, shapes=shapes)
    text = made.report(top=3)
    peak = made.schedule.operations[made.peak_step]
    assert f"at step {made.peak_step} of {len(made.schedule.operations)}: {peak.name}" in text
    assert "3 more" not in text.splitlines()[0]
    for row in made.rows:
        assert row.name in text
    assert sum(resident.nbytes for resident in made.residents) == made.peak
    assert sum(made.layers.values()) == made.peak
    drawn = made.timeline(width=20, height=4).splitlines()
    assert len(drawn) == 5  # with the phases
    assert set(drawn[-1].strip()) <= {"f", "b"}
    json.dumps(made.as_dict())
    rows = list(csv.DictReader(made.to_csv().splitlines()))
    assert [int(row["offset"]) for row in rows] == made.offsets.tolist()
    assert [row["id"] for row in rows] == list(made.buffers.ids)


def test_amounts_are_read_easily():
    assert [amount(n) for n in (0, 1023, 1024, 1536, 5 << 20, 3 << 40, 1 << 52)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "5 MiB",
        "3 TiB",
        "4096 TiB",
    ]


def test_what_is_wrong_is_said():
    graph = parse("graph g(%x: f32[2,?]) {\n  %y = exp(%x) : f32[2,?]\n  return %y\n}\n")
    with pytest.raises(InputError, match=r"the type of 'x' \(data\) in graph 'g' is f32\[2,\?\]"):
        plan(graph)
    symbol, shapes = mlp()
    made = plan(symbol, shapes=shapes)
    with pytest.raises(InputError, match="at least 1 column and 1 row, not 0 by 8"):
        made.timeline(width=0)
    with pytest.raises(InputError, match="reorder is for forward runs only"):
        plan(symbol, training=True, shapes=shapes, reorder=True)
    with pytest.raises(InputError, match="top must be at least 0, not -1"):
        made.report(-1)
    with pytest.raises(
        InputError, match="a Graph, a Symbol or a HybridBlock is wanted, not a dict"
    ):
        plan({})


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_graphs_take_no_more_than_in_mxnet(shared_data, name):
    from graphopt.api.lifting import lift

    shapes = json.loads((FOLDER / "shapes.json").read_text())[f"{name}-symbol.json"]["shapes"]
    graph = lift(FOLDER / "graphs" / f"{name}-symbol.json", shapes)
    made = plan(graph, training=True)
    check_packing(made.buffers, made.offsets, made.arena, 64)
    assert made.arena <= made.reported_bytes + (1 << 20)
    assert made.arena <= 1.1 * made.lower_bound
