"""Orders that need less memory, on MXNet's own engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphopt
from graphopt.backend import choosing, measured
from graphopt.backend import order as ordering
from graphopt.backend.choice import CACHED_OP, CACHED_OP_ONEDNN, EXECUTOR_ONEDNN
from graphopt.backend.documents import document_of
from graphopt.backend.engines import bind_as_is
from graphopt.backend.lower import lower
from graphopt.backend.order import in_order, other_orders
from graphopt.backend.symbol import to_json, to_symbol
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import lift_symbol
from graphopt.memory.listing import allocated, parse
from graphopt.memory.order import orders
from graphopt.memory.schedule import forward_schedule
from tests.memory import arena
from tests.strategies.graphs import graphs

mx = import_mxnet()
SHAPE = (64, 1024)


@pytest.fixture(autouse=True)
def all_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine."""
    monkeypatch.setattr(ordering, "_LIMIT_S", 600.0)


def branches(F: Any, x: Any, *, equal: bool = False) -> Any:
    """Branches whose large values are needed by two readers each, the second one at the end."""
    large = [F.tile(x if equal else x * (n + 1), reps=(1, 8)) for n in range(6)]
    sums = [F.sum(F.exp(value), axis=1, keepdims=True) for value in large]
    parts = [F.slice_axis(value, axis=1, begin=0, end=1024) for value in large]
    return F.concat(*map(F.broadcast_mul, parts, sums), dim=1)


def wide(*, equal: bool = False) -> Any:
    return branches(mx.sym, mx.sym.var("data"), equal=equal)


def array() -> Any:
    return mx.nd.array(np.random.default_rng(0).normal(size=SHAPE))


def test_mxnet_runs_in_the_order_of_control_dependencies() -> None:
    graph = lift_symbol(wide(), {"data": SHAPE}, {})
    schedule = forward_schedule(graph)
    document = json.loads(to_json(graph))
    for order in orders(schedule):
        names = [schedule.operations[at].name for at in order]
        symbol = mx.sym.load_json(json.dumps(in_order(document, names)))
        again = mx.sym.load_json(symbol.tojson())  # dependencies are saved, too
        listing = parse(bind_as_is(again, {"data": array()}, mx.cpu()).debug_str())
        assert [line.name for line in listing.lines if line.name in names] == names


@pytest.mark.parametrize("engine", [CACHED_OP, CACHED_OP_ONEDNN, EXECUTOR_ONEDNN])
def test_wide_graphs_run_in_less_memory(engine: str) -> None:
    symbol, x = wide(), array()
    graph = lift_symbol(symbol, {"data": SHAPE}, {})
    lowered = lower(graph, engine=engine)
    (found,) = lowered.run({"data": x})
    np.testing.assert_array_equal(found.asnumpy(), symbol.eval(data=x)[0].asnumpy())
    assert not lowered.choice.failed
    assert "order" in lowered.choice.memory
    assert lowered._engine is not None
    runs = bind_as_is(lowered._engine.rewritten(), {"data": x}, mx.cpu())
    plain = bind_as_is(to_symbol(graph), {"data": x}, mx.cpu())
    after, before = (allocated(executor.debug_str()) for executor in (runs, plain))
    assert (after, before) == (3, 12)
    assert f"{after} MiB instead of {before}" in lowered.choice.memory


@pytest.mark.parametrize("engine", [CACHED_OP, EXECUTOR_ONEDNN])
def test_an_order_is_found_once_for_all_names(
    engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measured, "ENABLED", True)
    told = []
    for prefix in ("one_", "other_"):
        with mx.name.Prefix(prefix):
            x, weight = mx.sym.var("data"), mx.sym.var(f"{prefix}w")
            symbol = branches(mx.sym, mx.sym.broadcast_mul(x, weight))
        shapes = {"data": SHAPE, weight.name: SHAPE}
        values = {name: array() for name in shapes}
        graph = lift_symbol(symbol, shapes, {}, data={"data"})
        lowered = lower(graph, {weight.name: values[weight.name]}, engine=engine)
        (found,) = lowered.run({"data": values["data"]})
        np.testing.assert_array_equal(found.asnumpy(), symbol.eval(**values)[0].asnumpy())
        told.append(lowered.choice.memory)
        assert lowered._engine is not None
        names = {node["name"] for node in document_of(lowered._engine.rewritten())["nodes"]}
        assert all(name.startswith((prefix, "data", "sg_")) for name in names)
        monkeypatch.setattr(choosing, "in_less_memory", lambda *_: pytest.fail("it is known"))
    assert told[0] == told[1] != ""


def test_models_say_what_their_order_saves() -> None:
    net = mx.gluon.nn.HybridLambda(branches)
    fast = graphopt.optimize(net)
    np.testing.assert_allclose(fast(array()).asnumpy(), net(array()).asnumpy(), rtol=1e-4)
    assert "memory: operators run in an order" in fast.explain()


@pytest.mark.parametrize("engine", [CACHED_OP, CACHED_OP_ONEDNN, EXECUTOR_ONEDNN])
def test_numpy_arrays_stay_numpy_arrays(engine: str) -> None:
    graph = lift_symbol(wide(), {"data": SHAPE}, {})
    lowered = lower(graph, numpy=True, engine=engine)
    (found,) = lowered.run({"data": array().as_np_ndarray()})
    assert isinstance(found, mx.np.ndarray)
    assert lowered.choice.memory


def test_operators_that_mxnet_merges_do_not_wait_for_each_other() -> None:
    symbol, x = wide(equal=True), array()
    lowered = lower(lift_symbol(symbol, {"data": SHAPE}, {}), engine=CACHED_OP)
    (found,) = lowered.run({"data": x})
    np.testing.assert_array_equal(found.asnumpy(), symbol.eval(data=x)[0].asnumpy())


def test_operators_without_a_gradient_keep_their_order() -> None:
    x = mx.sym.var("data")
    symbol = mx.sym.argmax(mx.sym.tile(x, reps=(1, 8)), axis=1) + mx.sym.sum(x, axis=1)
    lowered = lower(lift_symbol(symbol, {"data": SHAPE}, {}))
    (found,) = lowered.run({"data": array()})
    want = symbol.eval(data=array())[0].asnumpy()
    np.testing.assert_allclose(found.asnumpy(), want, rtol=1e-4)
    assert not lowered.choice.failed


def test_graphs_with_loops_of_mxnet_keep_their_order() -> None:
    x = mx.sym.var("data")
    body, _ = mx.sym.contrib.foreach(
        lambda row, state: (mx.sym.tanh(row), [state[0] + row]), x, [mx.sym.zeros((1024,))]
    )
    whole = mx.sym.concat(branches(mx.sym, x), body, dim=1)
    lowered = lower(lift_symbol(whole, {"data": SHAPE}, {}), engine=CACHED_OP)
    (found,) = lowered.run({"data": array()})
    np.testing.assert_allclose(found[:, -1024:].asnumpy(), np.tanh(array().asnumpy()), rtol=1e-4)
    assert not lowered.choice.memory


def test_an_operator_of_several_has_the_place_of_the_last() -> None:
    nodes = [
        {"op": "null", "name": "x", "inputs": []},
        {"op": "one", "name": "other", "inputs": [[0, 0, 0]]},
        {
            "op": "whole",
            "name": "fused",
            "inputs": [[0, 0, 0]],
            "subgraphs": [{"nodes": [{"name": "a"}, {"name": "b"}]}],
        },
        {"op": "one", "name": "last", "inputs": [[2, 0, 0], [1, 0, 0]]},
    ]
    document = {"nodes": nodes, "arg_nodes": [0], "heads": [[3, 0, 0]], "node_row_ptr": []}
    made = in_order(document, ["a", "b", "other", "last"])
    assert [node["name"] for node in made["nodes"]] == ["x", "fused", "other", "last"]
    assert [node.get("control_deps") for node in made["nodes"]] == [None, None, [1], None]
    assert "node_row_ptr" not in made
    made = in_order(document, ["a", "other", "b", "last"], free=["fused"])
    assert not any("control_deps" in node for node in made["nodes"])


@pytest.mark.parametrize("op", ["gather_nd", "scatter_nd"])
def test_what_mxnet_takes_for_backward_operators_waits_for_nothing(op: str) -> None:
    """It reads inputs that are not there of what such a one waits for, or ends the process."""
    # No two rows alike: of several that are written to one place any may be the last.
    x, index = mx.sym.var("data"), mx.sym.arange(64).reshape((1, 64))
    options = {"shape": (64, 1024)} if op == "scatter_nd" else {}
    picked = getattr(mx.sym, op)(x, index, **options)
    symbol = mx.sym.concat(picked, branches(mx.sym, x), mx.sym.exp(picked), dim=1)
    graph = lift_symbol(symbol, {"data": SHAPE}, {})
    names = [node.name for node in graph.topological() if node.name][::-1]
    nodes = in_order(document_of(to_symbol(graph)), names)["nodes"]
    assert any("control_deps" in node for node in nodes)
    assert not any("control_deps" in node for node in nodes if node["op"] == op)
    lowered = lower(graph, engine=CACHED_OP)
    (found,) = lowered.run({"data": array()})
    assert lowered.choice.memory
    np.testing.assert_allclose(found.asnumpy(), symbol.eval(data=array())[0].asnumpy(), rtol=1e-4)


def test_small_graphs_and_chains_are_left_alone() -> None:
    x = mx.sym.var("data")
    assert not other_orders(lift_symbol(wide(), {"data": (1, 1024)}, {}))
    chain = mx.sym.tanh(mx.sym.exp(x))
    (only,) = other_orders(lift_symbol(chain, {"data": (1024, 1024)}, {}))
    assert len(only) == 2


@settings(max_examples=30)
@given(graphs(max_ops=12), st.randoms())
def test_random_graphs_compute_the_same_in_any_order(graph: Any, random: Any) -> None:
    feeds, _ = arena.reference_run(graph)
    if any(node.op == "CONSTANT" or node.graphs for node in graph):
        return
    document = json.loads(to_json(graph))
    names = [node["name"] for node in document["nodes"] if node["op"] != "null"]
    if not names or len(set(names)) < len(names):
        return
    random.shuffle(names)
    found = []
    for text in (to_json(graph), json.dumps(in_order(document, names), ensure_ascii=False)):
        symbol = mx.sym.load_json(text)
        if not set(symbol.list_inputs()) <= set(feeds):
            return
        arrays = {name: mx.nd.array(feeds[name], dtype=feeds[name].dtype) for name in feeds}
        try:
            executor = bind_as_is(symbol, arrays, mx.cpu())
        except mx.MXNetError:
            return  # equal operators
        outputs = executor.forward(is_train=False)[:-1]
        found.append([output.asnumpy() for output in outputs])
    for want, got in zip(*found, strict=True):
        np.testing.assert_array_equal(want, got)
