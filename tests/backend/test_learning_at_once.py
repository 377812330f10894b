"""Graphs of dense layers as one operation of MXNet's engine, forward and backward."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.small import VIEWS, in_kernels, learns_at_once, learns_by_caller
from graphopt.compat import import_mxnet
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn

ONE = "runs on: one operation"


def noise(*shape: int, seed: int = 0) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape))


def layers(*widths: int) -> Any:
    """Dense layers, smooth as rounding must not matter, with the same weights in every call."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for at, (before, after) in enumerate(itertools.pairwise(widths)):
            is_last = at == len(widths) - 2
            net.add(nn.Dense(after, in_units=before, activation=None if is_last else "tanh"))
    net.initialize()
    for seed, (_, p) in enumerate(sorted(net.collect_params().items())):
        p.set_data(noise(*p.shape, seed=seed) / 10)
    return net


def learnt(net: Any, x: Any, request: str = "write") -> list[np.ndarray]:
    """The output, and the gradients of data and weights, which were ones."""
    params = [p for _, p in sorted(net.collect_params().items())]
    for p in params:
        p.grad_req = request
        p.grad()[:] = 1
    slope = mx.nd.ones_like(x)
    mx.autograd.mark_variables([x], [slope], request)
    with mx.autograd.record():
        y = net(x)
    y.backward(noise(*y.shape, seed=9))
    return [array.asnumpy() for array in (y, slope, *(p.grad() for p in params))]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        largest = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-6 * largest)


@pytest.mark.parametrize(
    ("rows", "widths"),
    [
        (128, (784, 128, 64, 10)),
        (5, (300, 1000, 700, 3)),  # rows that no weights are packed for
        (64, (1024, 260, 1024)),  # and whose weights share cache sets
        (200, (130, 50, 300, 1)),
        (1, (600, 1500, 1500)),
    ],
)
@pytest.mark.parametrize("request_", ["write", "add"])
def test_values_and_gradients(rows: int, widths: tuple[int, ...], request_: str) -> None:
    plain, x = layers(*widths), noise(rows, widths[0], seed=3)
    fast = graphopt.optimize(layers(*widths), strict=True)
    for _ in range(2):
        assert_same(learnt(fast, x, request_), learnt(plain, x, request_))
    assert ONE in fast.explain()


@pytest.mark.parametrize(
    ("rows", "units"),
    one_of(3, itertools.product([1, 3, 8, 17, 64, 65, 136], [1, 10, 16, 48, 97])),
)
def test_products_are_those_of_numpy(rows: int, units: int) -> None:
    """In float64, for widths that are whole vectors and that are not."""
    for depth in (1, 7, 48, 130, 800, 1024):
        net = layers(depth, units)
        weight, bias = (p.data().asnumpy().astype(np.float64) for p in net[0].params.values())
        x, head = noise(rows, depth, seed=3), noise(rows, units, seed=9)
        found = learnt(graphopt.optimize(net, strict=True), x)
        given, slope = x.asnumpy().astype(np.float64), head.asnumpy().astype(np.float64)
        expected = [given @ weight.T + bias, slope @ weight, slope.sum(0), slope.T @ given]
        assert_same(found, expected)


def test_one_thread_and_two_compute_the_same() -> None:
    results = []
    for count in (1, 2):
        mx.base.check_call(mx.base._LIB.MXSetNumOMPThreads(count))
        net = layers(300, 150, 20)
        results += [learnt(graphopt.optimize(net), noise(rows, 300)) for rows in (32, 150)]
    mx.base.check_call(mx.base._LIB.MXSetNumOMPThreads(2))
    for one, two in zip(results[:2], results[2:], strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)


def test_several_calls_before_backward() -> None:
    widths = (200, 400, 30)
    results = []
    for is_fast in (False, True):
        net = layers(*widths)
        one = graphopt.optimize(net, strict=True) if is_fast else net
        with mx.autograd.record():
            total = sum(one(noise(100, 200, seed=seed)).tanh().sum() for seed in range(3))
        total.backward()
        results.append([p.grad().asnumpy() for _, p in sorted(net.collect_params().items())])
    assert_same(*reversed(results))


def test_joins_cuts_and_norms_beside_dense_layers() -> None:
    class Both(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(prefix="both_")
            with self.name_scope():
                self.wide = nn.Dense(256, in_units=120)
                self.norm = nn.BatchNorm(in_channels=256)
                self.out = nn.Dense(20, in_units=376)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            first, second = F.split(F.tanh(self.norm(self.wide(x))), num_outputs=2, axis=1)
            return self.out(F.concat(first * second, second, x, dim=1))

    results = []
    for is_fast in (False, True):
        net = Both()
        net.initialize()
        for seed, (_, p) in enumerate(sorted(net.collect_params().items())):
            if p.grad_req != "null":
                p.set_data(noise(*p.shape, seed=seed) / 10)
        one = graphopt.optimize(net, strict=True) if is_fast else net
        x = noise(96, 120)
        with mx.autograd.record():
            y = one(x)
        y.backward(noise(*y.shape, seed=9))
        arrays = [p.data() for _, p in sorted(net.collect_params().items())]
        arrays += [
            p.grad() for _, p in sorted(net.collect_params().items()) if p.grad_req != "null"
        ]
        results.append([y.asnumpy(), *(array.asnumpy() for array in arrays)])
    for found, expected in zip(*reversed(results), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert ONE in one.explain()


def test_large_graphs_and_exact_ones_are_mxnets() -> None:
    def lifted(rows: int, *widths: int) -> Any:
        net = layers(*widths)
        graph = graphopt.lift(net, {"data": (rows, widths[0])})
        return in_kernels(graphopt.run(graph, mode="training").graph, learns=True)

    medium = lifted(128, 784, 128, 10)
    assert learns_at_once(medium)
    assert not learns_by_caller(medium)
    assert not learns_at_once(medium, exact=True)
    assert not learns_at_once(lifted(4096, 784, 512, 10))
    exact = graphopt.optimize(layers(784, 128, 10), precise=True)
    learnt(exact, noise(128, 784))
    assert ONE not in exact.explain()
    norm = nn.BatchNorm(in_channels=512)
    norm.initialize()
    graph = graphopt.lift(norm, {"data": (512, 512)})
    assert not learns_at_once(in_kernels(graph, learns=True))  # one thread would run it


def test_views_are_no_work() -> None:
    """A GroupNorm is a kernel between two reshapes, of which only the kernel writes."""
    norm = nn.GroupNorm(8)
    norm.initialize()
    graph = graphopt.run(graphopt.lift(norm, {"data": (8, 96, 56, 56)}), mode="training").graph
    views = [node for node in graph if node.op in VIEWS]
    written = sum(node.type.size or 0 for node in graph if not node.is_input)
    assert len(views) == 2
    assert written > 1 << 22 > written - sum(node.type.size or 0 for node in views)
    assert learns_at_once(graph)


def test_what_fails_before_it_is_told_of() -> None:
    fast = graphopt.optimize(layers(784, 128, 10))
    x = noise(128, 784)
    with mx.autograd.record():
        expected = fast(x).asnumpy()
    wrong = mx.nd.random.normal(0, -1, shape=(128, 784))  # fails in MXNet's engine
    with pytest.raises(mx.MXNetError, match="scale parameter"), mx.autograd.record():
        fast(wrong).asnumpy()
    with mx.autograd.record():
        np.testing.assert_array_equal(fast(x).asnumpy(), expected)


def test_steps_of_one_operation() -> None:
    results = []
    for is_one in (False, True):
        net, loss = layers(300, 256, 10), mx.gluon.loss.SoftmaxCrossEntropyLoss()
        momentum = {"learning_rate": 0.1, "momentum": 0.9}
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", momentum)
        data, label = noise(100, 300), mx.nd.array(np.arange(100) % 10)
        step = graphopt.train_step(net, loss, trainer)
        for _ in range(4):
            if is_one:
                losses = step(data, label)
            else:
                with mx.autograd.record():
                    losses = loss(net(data), label)
                losses.backward()
                trainer.step(100)
        params = [p for _, p in sorted(net.collect_params().items())]
        results.append([a.asnumpy() for p in params for a in (p.data(), p.grad())])
        results[-1].append(losses.asnumpy())
    assert_same(*reversed(results))
    assert "all of a step is one operation, for 1 type of inputs" in step.explain()


class Words(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Words, of which some numbers are dropped, and layers."""

    def __init__(self) -> None:
        super().__init__(prefix="words_")
        with self.name_scope():
            self.words = nn.Embedding(20_000, 16)
            self.layers = nn.HybridSequential()
            self.layers.add(nn.Dropout(0.5), nn.Dense(300, activation="tanh", in_units=320))
            self.layers.add(nn.Dropout(0.2), nn.Dense(10, in_units=300))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.layers(F.reshape(self.words(x), (0, -1)))


def words() -> tuple[Any, Any]:
    """The net with the same weights in every call, and what it reads."""
    net = Words()
    net.initialize()
    for seed, (_, p) in enumerate(sorted(net.collect_params().items())):
        p.set_data(noise(*p.shape, seed=seed) / 5)
    return net, mx.nd.array(np.random.default_rng(0).integers(0, 20_000, (64, 20)))


def without_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.backend.candidates.learns_at_once", lambda *_, **__: False)


def test_masks_are_those_of_other_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same seed, forward and backward, and none outside of training."""
    results = []
    for is_one in (True, False):
        if not is_one:
            without_one_operation(monkeypatch)
        net, x = words()
        fast = graphopt.optimize(net, strict=True)
        params = [p for _, p in sorted(net.collect_params().items())]
        mx.random.seed(5)
        found = []
        for train_mode in (True, True, False):
            with mx.autograd.record(train_mode=train_mode):
                y = fast(x)
            y.backward(train_mode=train_mode)
            found += [y.asnumpy(), *(p.grad().asnumpy() for p in params)]
        assert (ONE in fast.explain()) == is_one
        assert not np.allclose(found[0], found[len(params) + 1])
        results.append(found)
    assert_same(*results)


def test_steps_and_executors_draw_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for is_one in (True, False):
        if not is_one:
            without_one_operation(monkeypatch)
        net, x = words()
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        step = graphopt.train_step(net, mx.gluon.loss.L2Loss(), trainer)
        label = noise(64, 10)
        mx.random.seed(7)
        found = [step(x, label).asnumpy() for _ in range(3)]
        symbol = mx.sym.Dropout(mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=200), p=0.5)
        executor = graphopt.optimize(symbol.simple_bind(mx.cpu(), x=(100, 300)))
        for array in executor.arg_arrays:
            array[:] = noise(*array.shape) / 10
        for _ in range(3):
            executor.forward(is_train=True)
            for _ in range(2):  # the mask is that of forward
                executor.backward(mx.nd.ones((100, 200)))
                found += [a.asnumpy() for a in (*executor.outputs, *executor.grad_arrays)]
        assert ("all of a step is one operation" in step.explain()) == is_one
        assert (executor._direct[True] is not None) == is_one
        results.append(found)
    assert_same(*results)
