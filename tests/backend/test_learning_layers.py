"""Nets of small layers, which the thread that calls them runs forward and backward."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.small import in_kernels, learns_by_caller
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge
from tests.backend.learning_support import Net, assert_same, learnt, noise

mx = import_mxnet()
nn = mx.gluon.nn


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
