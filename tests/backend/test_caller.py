"""Nets that are small as a whole, which the thread that calls them runs for inference."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import small as small_graphs
from graphopt.backend.caller import CallerEngine
from graphopt.backend.choice import CALLER
from graphopt.backend.lower import Lowered, lower
from graphopt.backend.small import in_kernels, runs_by_caller
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import FUSED
from graphopt.ir.parser import parse

mx = import_mxnet()
nn = mx.gluon.nn


class Net(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """A function of an array, with layers to call."""

    def __init__(self, function: Callable[..., Any], **layers: Any) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.initialize(mx.init.Normal(0.5))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.function(self, F, x)


def noise(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape), dtype=dtype)


def lowered(net: Any, *shape: int, engine: str = CALLER) -> Lowered:
    """For inference, on that engine."""
    net(noise(*shape))  # initializes parameters
    graph = graphopt.run(graphopt.lift(net, {"data": shape})).graph
    params = {name: p.data() for name, p in net.collect_params().items()}
    return lower(graph, params, engine=engine)


def small(graph: Graph) -> bool:
    return runs_by_caller(in_kernels(graph))


def layers() -> Net:
    return Net(
        lambda self, F, x: F.softmax(self.out(self.norm(self.wide(x) + x))),
        wide=nn.Dense(16, activation="tanh", in_units=16),
        norm=nn.LayerNorm(in_channels=16),
        out=nn.Dense(5, in_units=16),
    )


NETS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "layers": (layers, (4, 16)),
    "one row": (layers, (1, 16)),
    "joins, cuts and lookups": (
        lambda: Net(
            lambda self, F, x: F.concat(
                F.reshape(self.words(F.slice_axis(x * 3, axis=1, begin=-3, end=-1)), (0, -1)),
                F.split(x, 2, axis=1)[1],
                self.out(x),
                dim=-1,
            ),
            words=nn.Embedding(5, 4),
            out=nn.Dense(6, in_units=4),
        ),
        (3, 4),
    ),
    "views": (
        lambda: Net(
            lambda self, F, x: F.reshape(self.out(F.tanh(x)), (0, 3, 2)).expand_dims(1),
            out=nn.Dense(6, in_units=24),
        ),
        (5, 2, 3, 4),
    ),
    "several results": (
        lambda: Net(
            lambda self, F, x: (F.relu(self.one(x)), F.exp(x) * 2, self.one(x).sum(axis=1)),
            one=nn.Dense(6, in_units=8),
        ),
        (3, 8),
    ),
    "kernels alone": (lambda: Net(lambda self, F, x: F.log_softmax(F.sigmoid(x) * 3)), (7, 9)),
    "one operator": (lambda: Net(lambda self, F, x: F.softmax(x)), (7, 9)),
}


@pytest.mark.parametrize("name", NETS)
def test_values(name: str) -> None:
    make, shape = NETS[name]
    net = make()
    run = lowered(net, *shape)
    for seed in range(3):
        x = noise(*shape, seed=seed)
        want = net(x)
        want = want if isinstance(want, (list, tuple)) else [want]
        for g, w in zip(run(x), want, strict=True):
            np.testing.assert_allclose(g.asnumpy(), w.asnumpy(), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes(dtype: str) -> None:
    net = Net(lambda self, F, x: F.tanh(x) * F.sigmoid(x))
    graph = graphopt.lift(net, {"data": (4, 8)}, {"data": dtype})
    run = lower(graphopt.run(graph).graph, {}, engine=CALLER)
    x = noise(4, 8, dtype=dtype)
    (got,) = run(x)
    assert got.dtype == x.dtype
    tolerance = 2e-3 if dtype == "float16" else 1e-12
    np.testing.assert_allclose(got.asnumpy(), net(x).asnumpy(), rtol=tolerance, atol=tolerance)


def test_the_numpy_interface() -> None:
    mx.npx.set_np()
    try:
        net = nn.HybridSequential()
        net.add(nn.Dense(8, activation="relu", in_units=6), nn.Dense(3, in_units=8))
        net.initialize()
        fast, x = graphopt.optimize(net), mx.np.random.normal(size=(4, 6))
        got = fast(x)
        assert type(got) is mx.np.ndarray
        np.testing.assert_allclose(got.asnumpy(), net(x).asnumpy(), rtol=2e-5, atol=1e-5)
        graph = graphopt.lift(net, {"data": (4, 6)})
        params = {name: p.data() for name, p in net.collect_params().items()}
        (again,) = lower(graph, params, engine=CALLER, numpy=True)(x)
        assert type(again) is mx.np.ndarray
        np.testing.assert_allclose(again.asnumpy(), got.asnumpy(), rtol=2e-5, atol=1e-5)
    finally:
        mx.npx.reset_np()


def test_what_is_not_run_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def graph(function: Callable[..., Any], *shape: int, **layers: Any) -> Graph:
        net = Net(function, **layers)
        net(noise(*shape))
        return graphopt.run(graphopt.lift(net, {"data": shape})).graph

    assert small(graph(lambda self, F, x: F.tanh(x) * 2, 4, 8))
    for no in (
        graph(lambda self, F, x: F.tanh(x) * 2, 400, 800),  # too large
        graph(lambda self, F, x: self.d(x), 64, 2048, d=nn.Dense(512)),  # too much to multiply
        graph(lambda self, F, x: F.sort(x), 4, 8),  # MXNet's
        graph(lambda self, F, x: (F.tanh(x) * 2, F.reshape(x, (8, 4))), 4, 8),  # a view of data
    ):
        assert not small(no)
    text = "graph g(%data: f32[4,8]) { %y = relu(%data) : f32[4,8] return %y }"
    one = parse(text)  # not fused by itself
    assert not runs_by_caller(one)
    assert small(one)
    monkeypatch.setattr(small_graphs, "_MOST_ALONE", 0)
    assert not small(one)


def test_a_result_that_is_returned_twice_is_left_to_mxnet() -> None:
    net = Net(lambda self, F, x: (F.tanh(x) * 2, F.reshape(F.tanh(x) * 2, (8, 4))))
    graph = graphopt.run(graphopt.lift(net, {"data": (4, 8)})).graph
    assert len(graph.outputs) == 2
    assert not small(graph)
    x = noise(4, 8)
    for g, w in zip(graphopt.optimize(net)(x), net(x), strict=True):
        np.testing.assert_allclose(g.asnumpy(), w.asnumpy(), rtol=1e-5)


def test_arrays_that_are_still_computed_are_waited_for() -> None:
    net = layers()
    run = lowered(net, 4, 16)
    large = noise(700, 700)
    for _ in range(10):
        x = mx.nd.dot(large, large)[:4, :16] / 100
        (got,) = run(x)
        large[:] = large * 0.99
        np.testing.assert_allclose(got.asnumpy(), net(x).asnumpy(), rtol=2e-5, atol=1e-5)
        x[:] = 0
    with mx.engine.bulk(10):
        found = [run(x + float(i))[0] for i in range(4)]
    for i, got in enumerate(found):
        want = net(x + float(i)).asnumpy()
        np.testing.assert_allclose(got.asnumpy(), want, rtol=2e-5, atol=1e-5)


def test_arrays_that_onednn_has_laid_out() -> None:
    net = Net(lambda self, F, x: F.tanh(x * 2) + 1)
    run = lowered(net, 1, 32, 6, 6)
    images, filters = noise(2, 16, 8, 8), noise(32, 16, 3, 3, seed=1)
    made = mx.nd.Convolution(images, filters, kernel=(3, 3), num_filter=32, no_bias=True)
    want = np.tanh(made.copy().asnumpy() * 2) + 1
    (got,) = run(made[1:2])
    np.testing.assert_allclose(got.asnumpy(), want[1:], rtol=2e-5, atol=1e-5)


def test_what_may_round_otherwise_is_not_there_for_precise_graphs() -> None:
    net = layers()
    net(noise(4, 16))
    fast = graphopt.optimize(net, precise=True)
    fast(noise(4, 16))
    assert CALLER not in fast.explain()
    kernels = Net(lambda self, F, x: F.log_softmax(F.sigmoid(x) * 3))
    precise = graphopt.optimize(kernels, precise=True)  # its kernels are precise themselves
    x = noise(4, 8)
    np.testing.assert_allclose(precise(x).asnumpy(), kernels(x).asnumpy(), rtol=1e-6, atol=1e-6)
    graph = graphopt.run(graphopt.lift(net, {"data": (4, 16)})).graph
    params = {name: p.data() for name, p in net.collect_params().items()}
    with pytest.raises(InputError, match="calling thread"):
        lower(graph, params, engine=CALLER, tune=False)(noise(4, 16))


def test_sparse_arrays_are_made_dense_or_left_to_mxnet() -> None:
    net = Net(lambda self, F, x: F.tanh(x * 2) + 1)
    run = lowered(net, 4, 8)
    sparse = noise(4, 8).tostype("row_sparse")
    want = net(noise(4, 8)).asnumpy()
    np.testing.assert_allclose(run(sparse)[0].asnumpy(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(graphopt.optimize(net)(sparse).asnumpy(), want, rtol=1e-5, atol=1e-6)


def test_parameters_are_followed() -> None:
    net = layers()
    fast, x = graphopt.optimize(net), noise(4, 16)
    for step in range(40):
        np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=2e-5, atol=1e-5)
        if step % 10 == 3:
            for parameter in net.collect_params().values():
                parameter.set_data(parameter.data() * 0.9 + 0.01)


def test_threads_share_an_engine() -> None:
    net = layers()
    given = [noise(4, 16, seed=seed) for seed in range(4)]
    wanted = [net(x).asnumpy() for x in given]
    wrong: list[int] = []

    def work(run: Lowered, seed: int) -> None:
        for _ in range(12):
            (got,) = run(given[seed])
            if not np.allclose(got.asnumpy(), wanted[seed], rtol=1e-4, atol=1e-5):
                wrong.append(seed)

    for _ in range(16):  # first calls, too: what they read may still be on its way
        run = lowered(net, 4, 16)
        threads = [threading.Thread(target=work, args=(run, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_signal_handler_may_call_the_net_again() -> None:
    net = layers()
    run, x = lowered(net, 4, 16), noise(4, 16)
    want, found = net(x).asnumpy(), []
    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(run(x)[0].asnumpy()))
    try:
        for turn in range(200):
            if turn % 10 == 0:
                os.kill(os.getpid(), signal.SIGUSR1)
            np.testing.assert_allclose(run(x)[0].asnumpy(), want, rtol=2e-5, atol=1e-5)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(found) == 20
    for got in found:
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


def test_a_kernel_that_cannot_be_had_is_told() -> None:
    net = Net(lambda self, F, x: F.tanh(x) * 2)
    graph = graphopt.run(graphopt.lift(net, {"data": (4, 8)})).graph
    (node,) = [node for node in graph if not node.is_input]
    assert node.op == FUSED
    graph.update(node.but(attrs=Attrs(spec="nonsense")))
    with pytest.raises(GraphoptError, match="nonsense"):
        CallerEngine(graph, {}, ["data"], mx.cpu(), CALLER, numpy=False)
