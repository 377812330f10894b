"""Nets that are small as a whole, which the thread that calls them runs forward and backward."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.caller import LearningEngine
from graphopt.backend.engines import CachedOpEngine
from graphopt.backend.lower import lower
from graphopt.backend.pushing import TURN
from graphopt.backend.small import in_kernels, learns_by_caller
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()
nn = mx.gluon.nn


class Net(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """A function of two arrays."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def hybrid_forward(self, F: Any, x: Any, w: Any) -> Any:
        return self.function(F, x, w)


def gate(F: Any, x: Any, w: Any) -> Any:
    return F.tanh(F.broadcast_mul(x, w) + 1.5) * F.sigmoid(x)


def normed(F: Any, x: Any, w: Any) -> Any:
    return F.softmax(F.LayerNorm(x, w, w) * 2.0)


def noise(*shape: int, seed: int = 0) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape))


def learnt(net: Any, x: Any, w: Any, request: str = "write") -> list[Any]:
    """The output, and the gradients, which were ones."""
    slopes = [mx.nd.ones_like(x), mx.nd.ones_like(w)]
    mx.autograd.mark_variables([x, w], slopes, request)
    with mx.autograd.record():
        y = net(x, w)
    y.backward(noise(*y.shape, seed=9))
    return [array.asnumpy() for array in (y, *slopes)]


def assert_same(got: list[Any], want: list[Any]) -> None:
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-5)


def graph_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    lifted = graphopt.lift(Net(function), dict(zip(("data0", "data1"), shapes, strict=True)))
    return graphopt.run(lifted, mode="training").graph


def all_at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each returns, called by a thread of its own when all threads are there."""
    start, found = threading.Barrier(len(calls)), dict[int, Any]()

    def work(i: int) -> None:
        start.wait()
        found[i] = calls[i]()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in range(len(calls))]


def test_small_graphs_are_run_by_the_caller_and_others_are_not() -> None:
    for graph in (
        graph_of(gate, (4, 8), (8,)),
        graph_of(
            lambda F, x, w: F.FullyConnected(x, w, no_bias=True, num_hidden=8), (4, 8), (8, 8)
        ),
        graph_of(lambda F, x, w: F.reshape(x + w, (2, -1)), (4, 8), (4, 8)),
    ):
        assert learns_by_caller(in_kernels(graph, learns=True))
    bytes_ = graphopt.parse(
        "graph g(%x: u8[4], param %t: f32[9,2]) {"
        " %y = Embedding(%x, %t) {input_dim=9, output_dim=2} : f32[4,2] return %y }"
    )
    for graph in (
        bytes_,
        graph_of(gate, (512, 512), (512,)),  # too large
        graph_of(lambda F, x, w: F.broadcast_add(F.exp(x), w), (1, 512), (512, 1)),  # its output
        graph_of(lambda F, x, w: F.dot(F.tanh(x), F.tanh(w)), (4, 8), (8, 4)),  # with MXNet's
        graph_of(lambda F, x, w: F.Group([x, x]) if hasattr(F, "Group") else [x, x], (8,), (8,)),
    ):
        assert not learns_by_caller(in_kernels(graph, learns=True))


@pytest.mark.parametrize("function", [gate, normed])
@pytest.mark.parametrize("request_", ["write", "add"])
def test_values_and_gradients(function: Any, request_: str) -> None:
    net = Net(function)
    fast = graphopt.optimize(net)
    for seed in range(3):
        arrays = noise(4, 8, seed=seed), noise(8, seed=seed + 5)
        assert_same(learnt(fast, *arrays, request_), learnt(net, *arrays, request_))
        assert_same([fast(*arrays).asnumpy()], [net(*arrays).asnumpy()])


def test_arrays_that_are_still_computed_are_waited_for() -> None:
    net = Net(gate)
    fast = graphopt.optimize(net)
    large, w = noise(700, 700), noise(8)
    fast(noise(4, 8), w).wait_to_read()
    for _ in range(10):
        product = mx.nd.dot(large, large)
        x = product[:4, :8] / 100
        got = fast(x, w)
        large[:] = large * 0.99  # behind what reads it
        assert_same([got.asnumpy()], [net(x, w).asnumpy()])
        x[:] = 0  # behind what reads it, too


@pytest.mark.parametrize("request_", ["write", "add"])
def test_arrays_that_onednn_has_laid_out(request_: str) -> None:
    net = Net(lambda F, x, w: F.tanh(F.broadcast_mul(x, w) + 1.5))
    fast = graphopt.optimize(net)
    image, filters, w = noise(1, 16, 8, 8), noise(32, 16, 3, 3), noise(1, 32, 1, 1)

    def convolved() -> Any:
        return mx.nd.Convolution(image, filters, kernel=(3, 3), num_filter=32, no_bias=True)

    wanted = learnt(net, mx.nd.array(convolved().asnumpy()), w, request_)
    assert_same(learnt(fast, convolved(), w, request_), wanted)
    # A gradient that lies in another order.
    x = mx.nd.array(convolved().asnumpy())
    for one in (net, fast):
        slope = convolved()
        mx.autograd.mark_variables([x], [slope], request_)
        with mx.autograd.record():
            y = one(x, w)
        y.backward()
        if one is net:
            want = slope.asnumpy()
    np.testing.assert_allclose(slope.asnumpy(), want, rtol=2e-5, atol=1e-5)


def test_views_and_chains_of_nets() -> None:
    net = Net(gate)
    fast = graphopt.optimize(net)
    whole, w = noise(6, 8), noise(8)
    x = whole[1:5]
    assert_same([fast(fast(x, w), w).asnumpy()], [net(net(x, w), w).asnumpy()])
    with mx.engine.bulk(10):
        found = [fast(x * float(i), w) for i in range(4)]
    for i, got in enumerate(found):
        assert_same([got.asnumpy()], [net(x * float(i), w).asnumpy()])


def test_threads_call_one_net() -> None:
    net = Net(normed)
    fast = graphopt.optimize(net)

    def steps(i: int, one: Any, times: int) -> list[list[Any]]:
        return [learnt(one, noise(4, 8, seed=i), noise(8, seed=i)) for _ in range(times)]

    found = all_at_once([lambda i=i: steps(i, fast, 20) for i in range(4)])
    for i, results in enumerate(found):
        (want,) = steps(i, net, 1)
        for got in results:
            assert_same(got, want)


def test_gradient_that_is_a_part_of_what_onednn_has_laid_out() -> None:
    fast = graphopt.optimize(Net(gate))
    images, filters = noise(2, 16, 8, 8), noise(32, 16, 3, 3, seed=1)
    slopes = mx.nd.Convolution(images, filters, kernel=(3, 3), num_filter=32, no_bias=True)
    want = slopes.copy().asnumpy()
    x, w = noise(1, 32, 6, 6, seed=2), noise(1, 32, 1, 1, seed=3)
    fast(x, w)
    mx.autograd.mark_variables([x], [slopes[1:2]], "add")
    with mx.autograd.record():
        y = fast(x, w)
    y.backward()
    plain = x.copy()
    plain.attach_grad()
    with mx.autograd.record():
        z = Net(gate)(plain, w)
    z.backward()
    want[1] += plain.grad.asnumpy()[0]
    np.testing.assert_allclose(slopes.asnumpy(), want, rtol=2e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_sparse_arrays() -> None:
    net = Net(gate)
    fast = graphopt.optimize(net)
    x, w = noise(4, 8), noise(8)
    sparse = x.tostype("row_sparse")
    assert_same([fast(sparse, w).asnumpy()], [net(x, w).asnumpy()])
    found = []
    for one in (net, fast):
        x = noise(4, 8)
        x.attach_grad(stype="row_sparse")
        for _ in range(2):
            with mx.autograd.record():
                y = one(x, w)
            y.backward(noise(4, 8, seed=3))
        assert x.grad.stype == "row_sparse"
        found.append(x.grad.asnumpy())
    np.testing.assert_allclose(*found, rtol=2e-5, atol=1e-5)


def test_its_symbol_stays_what_executors_can_run() -> None:
    lowered = lower(graph_of(gate, (4, 8), (8,)), frozen=False)
    x, w = noise(4, 8), noise(8)
    want = lowered(x, w)[0].asnumpy()
    assert isinstance(lowered._engine, LearningEngine)
    symbol = lowered.exported(kernels=True)
    executor = symbol.simple_bind(mx.cpu(), data0=(4, 8), data1=(8,), grad_req="null")
    np.testing.assert_allclose(executor.forward(data0=x, data1=w)[0].asnumpy(), want, rtol=1e-5)


def test_a_kernel_that_fails_is_told_of() -> None:
    fast = graphopt.optimize(Net(gate))
    x, w = noise(4, 8), noise(8)
    fast(x, w).asnumpy()
    wrong = mx.nd.random.normal(0, -1, shape=(4, 8))  # fails in MXNet's engine
    with pytest.raises(mx.MXNetError, match="scale parameter"):
        fast(wrong, w).asnumpy()
    assert_same([fast(x, w).asnumpy()], [Net(gate)(x, w).asnumpy()])


def test_gradients_of_higher_order_are_refused_in_clear_words() -> None:
    x, net = noise(8, 16), graphopt.optimize(Net(gate))
    x.attach_grad()
    with mx.autograd.record():
        slope = mx.autograd.grad(net(x, noise(1, 16)), x, create_graph=True, retain_graph=True)[0]
        penalty = (slope * slope).sum()
    with pytest.raises(mx.MXNetError, match="higher order"):
        penalty.backward()


def test_a_forked_child_calls_it() -> None:
    fast = graphopt.optimize(Net(gate))
    x, w = noise(4, 8), noise(8)
    want = learnt(fast, x, w)
    child = os.fork()
    if child == 0:
        got = learnt(fast, x, w)
        os._exit(0 if all(map(np.allclose, got, want)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def masked(x: Any) -> Any:
    """A graph for whose results MXNet waits, which has a turn of its own."""
    return mx.sym.contrib.boolean_mask(x, x.sum(axis=1) > 0)


@pytest.mark.parametrize("function", [mx.sym.tanh, masked])
def test_a_child_that_is_forked_during_a_first_call(function: Any) -> None:
    x = mx.nd.ones((4, 8))
    engine = CachedOpEngine(function(mx.sym.var("x")), ["x"])
    want = np.ones((4, 8)) if function is masked else np.tanh(np.ones((4, 8)))
    taken, over = threading.Event(), threading.Event()

    def first_call() -> None:
        with engine._turn:  # where another thread was when the process was forked
            taken.set()
            # Who forks waits until nobody is in the midst of a turn that all share.
            over.wait(0.2 if engine._turn is TURN else None)

    thread = threading.Thread(target=first_call)
    thread.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if np.allclose(engine([x])[0].asnumpy(), want) else 1)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_threads_call_it_first_with_different_shapes() -> None:
    shapes = [(rows, 8) for rows in (1, 2, 3, 4)] * 2
    want = [Net(normed)(noise(*shape), noise(8)).asnumpy() for shape in shapes]
    for _ in range(5):
        fast = graphopt.optimize(Net(normed))
        calls = [lambda s=shape, f=fast: f(noise(*s), noise(8)).asnumpy() for shape in shapes]
        assert_same(all_at_once(calls), want)


@pytest.mark.parametrize("function", [lambda F, x, w: x + w, lambda F, x, w: F.broadcast_add(x, w)])
@pytest.mark.parametrize("request_", ["write", "add"])
def test_sums_that_hand_on_their_gradients(function: Any, request_: str) -> None:
    """No kernels: MXNet gets these gradients wrong unless it records them by itself."""
    found = []
    for one in (Net(function), graphopt.optimize(Net(function))):
        x, w = noise(4, 8), noise(4, 8, seed=1)
        slopes = [mx.nd.ones_like(x), mx.nd.ones_like(w)]
        mx.autograd.mark_variables([x, w], slopes, request_)
        for _ in range(3):
            with mx.autograd.record():
                y = one(x, w)
            y.backward(mx.nd.full((4, 8), 2.0))
        with mx.autograd.record():
            y = one(one(x, w), w)
        y.backward()
        found.append([array.asnumpy() for array in (y, *slopes)])
    assert_same(*found)


class Layers(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Layers whose results are read twice, of several shapes, with two results."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.wide = nn.Dense(12, activation="tanh", in_units=8)
            self.same = nn.Dense(12, use_bias=False, in_units=12)
            self.norm = nn.LayerNorm(in_channels=12)
            self.last = nn.Dense(5, flatten=False, in_units=6)
            self.scale = self.params.get("scale", shape=(1, 12), init=mx.init.One())

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
        wide = self.wide(x)
        summed = self.norm(self.same(wide) + wide)
        scaled = F.broadcast_mul(F.relu(summed), scale)
        return F.softmax(self.last(F.reshape(scaled, (0, 2, 6)))), F.sum(scaled * wide, axis=1)


def trained(net: Any, params: Any, x: Any, request: str, heads: tuple[bool, bool]) -> list[Any]:
    """Results, and gradients of all parameters and of the input."""
    slope = mx.nd.ones_like(x)
    mx.autograd.mark_variables([x], [slope], request)
    for p in params:
        p.grad_req = request
        p.grad()[:] = 1
    with mx.autograd.record():
        found = net(x)
        used = [y for y, is_read in zip(found, heads, strict=True) if is_read]
        loss = sum((y * noise(*y.shape, seed=3)).sum() for y in used)
    loss.backward()
    return [array.asnumpy() for array in (*found, slope, *(p.grad() for p in params))]


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("request_", ["write", "add"])
@pytest.mark.parametrize("heads", [(True, True), (True, False), (False, True)])
def test_layers_learn(rows: int, request_: str, heads: tuple[bool, bool]) -> None:
    mx.random.seed(1)
    net = Layers()
    net.initialize(mx.init.Normal(0.5))
    params = [p for _, p in sorted(net.collect_params().items())]
    fast = graphopt.optimize(net, strict=True)
    net.hybridize()  # then gradients of what is not read are zero
    x = noise(rows, 8)
    want = trained(net, params, x, request_, heads)
    for _ in range(2):
        assert_same(trained(fast, params, x, request_, heads), want)
    assert "runs on: calling thread" in fast.explain()


def test_parameters_that_do_not_learn() -> None:
    net = Layers()
    net.initialize(mx.init.Normal(0.5))
    every = [p for _, p in sorted(net.collect_params().items())]
    want = trained(net, every, noise(4, 8), "write", (True, True))
    # Of a layer whose weights do not learn MXNet leaves out the bias.
    held = (net.wide.weight, net.norm.gamma, net.same.weight)
    for parameter in held:
        parameter.grad_req = "null"
    fast = graphopt.optimize(net, strict=True)
    left = [p for p in every if p not in held]
    found = trained(fast, left, noise(4, 8), "write", (True, True))
    wanted = [w for w, p in zip(want[3:], every, strict=True) if p not in held]
    assert_same(found, [*want[:3], *wanted])


def test_called_twice_before_backward() -> None:
    net = Layers()
    net.initialize(mx.init.Normal(0.5))
    params = [p for _, p in sorted(net.collect_params().items())]
    found = []
    for one in (net, graphopt.optimize(net, strict=True)):
        x = noise(4, 8)
        x.attach_grad()
        with mx.autograd.record():
            first, _ = one(x)
            second, more = one(x * 2)
            loss = (first * second * noise(4, 2, 5, seed=2)).sum() + more.sum()
        loss.backward()
        found.append([array.asnumpy() for array in (x.grad, *(p.grad() for p in params))])
    assert_same(*found)


def test_backward_after_the_net_is_gone() -> None:
    net = Layers()
    net.initialize(mx.init.Normal(0.5))
    fast = graphopt.optimize(net, strict=True)
    want = trained(net, [net.scale], noise(4, 8), "write", (True, True))
    x = noise(4, 8)
    x.attach_grad()
    with mx.autograd.record():
        found = fast(x)
        loss = sum((y * noise(*y.shape, seed=3)).sum() for y in found)
    (entry,) = fast.graphopt_state.compiled.entries
    number = entry.lowered.bound[0].number
    fast.reset()
    del fast, entry
    gc.collect()
    loss.backward(retain_graph=True)
    assert is_kept(number)
    loss.backward()
    assert_same([x.grad.asnumpy(), net.scale.grad().asnumpy()], want[2:])
    del found, loss
    gc.collect()
    mx.nd.waitall()
    assert not is_kept(number)


def is_kept(number: int) -> bool:
    """Whether the bridge has a graph of that number."""
    return bridge.load(mx).graphopt_graph_stash(ctypes.c_int64(number)) >= 0


def test_inference_between_steps_reads_what_was_learned() -> None:
    net = Layers()
    net.initialize(mx.init.Normal(0.5))
    fast = graphopt.optimize(net, strict=True)
    trainer = graphopt.optimize(mx.gluon.Trainer(net.collect_params(), "sgd"), strict=True)
    x = noise(4, 8)
    for _ in range(5):
        with mx.autograd.record():
            loss = (fast(x)[0] ** 2).sum()
        loss.backward()
        trainer.step(1)
        assert_same([y.asnumpy() for y in fast(x)], [y.asnumpy() for y in net(x)])


def test_precise_leaves_products_to_mxnet() -> None:
    net = Layers()
    net.initialize(mx.init.Normal(0.5))
    fast = graphopt.optimize(net, strict=True, precise=True)
    params = [p for _, p in sorted(net.collect_params().items())]
    want = trained(net, params, noise(4, 8), "write", (True, True))
    assert_same(trained(fast, params, noise(4, 8), "write", (True, True)), want)
    assert "calling thread" not in fast.explain()
    for layer in (nn.Dense(3, in_units=8), nn.BatchNorm(in_channels=8)):
        layer.initialize()
        for precise in (False, True):
            one = graphopt.optimize(layer, strict=True, precise=precise)
            with mx.autograd.record():
                one(noise(4, 8))
            assert ("calling thread" in one.explain()) is not precise


@pytest.mark.parametrize("request_", ["write", "add"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_joins_cuts_and_lookups(request_: str, dtype: str) -> None:
    class Net(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(7, 4)
            self.last = nn.Dense(3, in_units=14)

        def hybrid_forward(self, F: Any, x: Any, numbers: Any) -> Any:
            first, second, third = F.split(x, 3, axis=1)
            end = F.slice_axis(x, axis=-1, begin=-5, end=None)
            words = F.reshape(self.words(numbers), (0, -1))
            joined = F.concat(
                first * second, words, F.slice_axis(end, axis=1, begin=1, end=3), dim=1
            )
            return self.last(joined), F.tanh(F.concat(joined, third, joined, dim=-1))

    net = Net()
    net.initialize(mx.init.Normal(0.5))
    fast = graphopt.optimize(net, strict=True)
    net.hybridize()
    numbers = mx.nd.array([[0, 6], [6, 2], [-3, 99], [1, 1]], dtype=dtype)
    params = [p for _, p in sorted(net.collect_params().items())]
    found = []
    for one in (net, fast):
        call = lambda x, f=one: f(x, numbers)  # noqa: E731
        found.append(trained(call, params, noise(4, 12), request_, (True, True)))
    assert_same(*found)
    assert "runs on: calling thread" in fast.explain()
    assert_same(
        [y.asnumpy() for y in fast(noise(4, 12), numbers)],
        [y.asnumpy() for y in net(noise(4, 12), numbers)],
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_joins_and_cuts_of_any_axis(axis: int) -> None:
    def function(F: Any, x: Any, w: Any) -> Any:
        joined = F.concat(x * 2, F.broadcast_add(x, w), dim=axis)
        parts = F.split(joined, 2, axis=axis - 3)
        end = 1 + (3, 4, 5)[axis]
        return parts[0] + F.slice_axis(joined, axis=axis, begin=1, end=end)

    net = Net(function)
    fast = graphopt.optimize(net, strict=True)
    arrays = noise(3, 4, 5), noise(1, 4, 1, seed=4)
    for request in ("write", "add"):
        assert_same(learnt(fast, *arrays, request), learnt(net, *arrays, request))
    assert "runs on: calling thread" in fast.explain()


def test_layers_and_kernels_that_read_an_array_twice() -> None:
    net = Net(lambda F, x, w: F.FullyConnected(x, x, w, num_hidden=8) * F.reshape(x, (0, 8)))
    fast = graphopt.optimize(net, strict=True)
    arrays = noise(8, 8), noise(8, seed=4)
    for request in ("write", "add"):
        assert_same(learnt(fast, *arrays, request), learnt(net, *arrays, request))
    views = Net(lambda F, x, w: F.relu(F.reshape(x, (2, 4)) * F.reshape(x, (2, -1)) + w))
    assert_same(
        learnt(graphopt.optimize(views), noise(8), noise(2, 4)),
        learnt(views, noise(8), noise(2, 4)),
    )


@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (5, 6, 3), (2, 6, 3, 2)])
@pytest.mark.parametrize("request_", ["write", "add"])
@pytest.mark.parametrize("train_mode", [True, False])
def test_batch_norm(shape: tuple[int, ...], request_: str, train_mode: bool) -> None:
    found = []
    for is_fast in (False, True):
        mx.random.seed(5)
        net = nn.HybridSequential(prefix="norm_")
        with net.name_scope():
            net.add(nn.BatchNorm(in_channels=6, epsilon=1e-3, momentum=0.7), nn.Activation("tanh"))
            net.add(nn.BatchNorm(in_channels=6, use_global_stats=True))
        net.initialize()
        params = [p for _, p in sorted(net.collect_params().items())]
        for seed, p in enumerate(params):
            p.set_data(mx.nd.abs(noise(*p.shape, seed=seed)) + 0.1)
        one = graphopt.optimize(net, strict=True) if is_fast else net
        net.hybridize()
        x, slope = noise(*shape), mx.nd.ones(shape)
        mx.autograd.mark_variables([x], [slope], request_)
        results = []
        for _ in range(3):
            with mx.autograd.record(train_mode=train_mode):
                y = one(x)
            y.backward(noise(*shape, seed=9), train_mode=train_mode)
            results += [y.asnumpy(), slope.asnumpy(), *(p.data().asnumpy() for p in params)]
            results += [p.grad().asnumpy() for p in params if p.grad_req != "null"]
        results.append(one(x).asnumpy())
        found.append(results)
    for got, want in zip(*reversed(found), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 if shape[0] == 1 else 1e-4)
    assert "runs on: calling thread" in one.explain()


def test_other_batch_norms_are_not_run_by_the_caller() -> None:
    for layer in (nn.BatchNorm(axis=-1, in_channels=8), nn.BatchNorm(scale=False, in_channels=4)):
        layer.initialize()
        lifted = graphopt.lift(layer, {"data": (2, 4, 8)})
        assert not learns_by_caller(in_kernels(lifted, learns=True))
