"""Calls within a budget, one after another: memory is used again, and inputs may change."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.step import bind as bound_for_step
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError
from tests.nn.budgets import deep, image, pools, small, told

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


@pytest.mark.usefixtures("small_heap")
def test_memory_of_a_call_is_free_when_its_tape_is_gone() -> None:
    net = deep(2)
    net(image())
    fast = graphopt.optimize(net, memory="1GB")
    for _ in range(5):
        with autograd.record():
            loss = fast(image()).sum()
        loss.backward()
    for _ in range(5):
        with autograd.record():
            loss = fast(image()).sum()
        del loss
        gc.collect()
    assert len(pools(fast)) == 1


def bindings(net: Any) -> int:
    return sum(len(pool.bindings) for pool in pools(net)._pools)


def test_a_batch_that_comes_again_needs_no_other_executor() -> None:
    net, x = small(), mx.nd.ones((2, 5))
    net(x)
    fast = graphopt.optimize(net, memory="1GB")
    for _ in range(3):
        with autograd.record():
            loss = fast(x).sum()
        loss.backward()
    with autograd.record():
        fast(x)  # autograd keeps what it knows of an array until a backward
    with autograd.record():
        fast(x + 0)
    assert bindings(fast) == 1


class Placed(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Adds a constant of its own to what it computes."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(8, in_units=5, activation="tanh")

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.broadcast_add(self.dense(x), F.reshape(F.arange(8), (1, 8)))


@pytest.mark.parametrize("limit", [{"memory": "1GB"}, {"max_shapes": {"data": (4, 5)}}], ids=str)
def test_a_net_with_constants_needs_one_executor_for_all_steps(
    limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[Any] = []

    def bind(*args: Any) -> Any:
        bound.append(bound_for_step(*args))
        return bound[-1]

    monkeypatch.setattr("graphopt.backend.step.bind", bind)
    net = Placed()
    net.initialize()
    fast = graphopt.optimize(net, **limit)
    for seed in range(5):
        x = mx.nd.array(np.random.default_rng(seed).normal(size=(4, 5)))
        found = []
        for which in (net, fast):
            with autograd.record():
                loss = (which(x) ** 2).sum()
            loss.backward()
            found.append([loss.asnumpy(), net.dense.weight.grad().asnumpy().copy()])
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert len(bound) == 1


def test_words_are_trained_on_again_and_again() -> None:
    net = nn.HybridSequential()
    net.add(nn.Embedding(50, 8), nn.Dense(8, flatten=False, activation="tanh"), nn.Dense(3))
    net.initialize()
    words = mx.nd.array(np.random.default_rng(0).integers(0, 50, size=(4, 6)), dtype="int32")
    net(words)
    found = []
    for which in (net, graphopt.optimize(net, memory="1GB")):
        for _ in range(3):  # MXNet has no gradient of words
            with autograd.record():
                loss = (which(words) ** 2).sum()
            loss.backward()
        found.append(net[0].weight.grad().asnumpy().copy())
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("limit", [{"memory": "1GB"}, {"max_shapes": {"data": (32, 5)}}], ids=str)
def test_parts_of_what_a_convolution_left(limit: dict[str, Any]) -> None:
    """As inputs and as gradients of results; oneDNN has laid the whole out in blocks."""
    net = small()
    net(mx.nd.ones((2, 5)))
    fast = graphopt.optimize(net, **limit)
    whole = nn.Conv2D(16, 1, in_channels=16)
    whole.initialize(mx.init.Xavier())

    def step(which: Any, part: Any) -> list[np.ndarray]:
        left = mx.nd.random.normal(shape=(2, 16, 4, 5))
        with autograd.record():
            y = which(part(whole(left)))
        head = whole(mx.nd.ones((2, 16, 5, 7))).reshape((-1,))[5 : 5 + y.size]
        y.backward(head.reshape(y.shape))
        parameters = [*whole.collect_params().values(), *net.collect_params().values()]
        return [y.asnumpy(), *(parameter.grad().asnumpy() for parameter in parameters)]

    for part in (lambda y: y[1, 3], lambda y: y[1, 3:5].reshape((-1, 5))):
        found = []
        for which in (net, fast):
            mx.random.seed(0)
            found.append(step(which, part))
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_inputs_may_get_a_gradient_later() -> None:
    net, x = small(), mx.nd.ones((2, 5))
    net(x)
    fast = graphopt.optimize(net, memory="1GB")
    with autograd.record():
        loss = fast(x).sum()
    loss.backward()
    x.attach_grad()
    found = []
    for which in (net, fast):
        with autograd.record():
            loss = (which(mx.nd.tanh(x * 2)) ** 2).sum()
        loss.backward()
        found.append(x.grad.asnumpy().copy())
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("leaf", [True, False])
def test_gradients_of_inputs_count_from_the_step_that_has_them(leaf: bool) -> None:
    net, x = small(), mx.nd.ones((50_000, 40))  # of 8 MB
    net(x)

    def step(fast: Any) -> None:
        with autograd.record():
            loss = fast(x if leaf else x * 2).sum()
        loss.backward()

    with pytest.raises(BudgetError) as caught:
        step(graphopt.optimize(net, memory=1000))
    found = re.search(r"the least is ([\d.]+ MB)", str(caught.value))
    assert found is not None
    tight, wide = (graphopt.optimize(net, memory=memory) for memory in (found[1], "1GB"))
    step(tight)
    step(wide)
    assert "(8.0 MB of it for inputs, parameters, states and gradients)" in told(wide)
    x.attach_grad()
    step(wide)
    assert "(16 MB of it for inputs" in told(wide)
    x.grad[:] = 7
    for _ in range(2):
        with pytest.raises(BudgetError, match=f"cannot run in {found[1]}"):
            step(tight)
    assert (x.grad.asnumpy() == 7).all()
    step(wide)
    got = x.grad.asnumpy().copy()
    step(net)
    np.testing.assert_allclose(got, x.grad.asnumpy(), rtol=1e-4, atol=1e-6)


def test_backward_runs_after_the_net_is_gone() -> None:
    net, x = small(), mx.nd.ones((2, 5))
    net(x)
    with autograd.record():
        want = net(x).sum()
    want.backward()
    weight = net[0].weight
    expected = weight.grad().asnumpy().copy()
    weight.zero_grad()
    fast = graphopt.optimize(net, memory="1GB")
    with autograd.record():
        loss = fast(x).sum()
    del fast
    gc.collect()
    loss.backward()
    np.testing.assert_allclose(weight.grad().asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_shapes_that_are_forgotten_hold_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.nn.entries.MAX_SIGNATURES", 2)
    fast = graphopt.optimize(small(), max_shapes={"data": (9, 5)})
    for batch in range(1, 9):
        with autograd.record():
            loss = fast(mx.nd.ones((batch, 5))).sum()
        loss.backward()
    (pool,) = pools(fast)._pools
    assert len(pool.bindings) <= 2
