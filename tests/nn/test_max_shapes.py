"""Memory of the largest shapes, which steps of smaller ones share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError, InputError
from tests.nn.budgets import check, deep, image, least, near, pools, small

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def test_smaller_shapes_run_in_the_memory_of_the_largest() -> None:
    net = deep(2)
    net(image())
    fast = graphopt.optimize(net, max_shapes={"data": (16, 3, 40, 40)})
    for batch in (16, 3, 8, 1):
        with autograd.record():
            found, want = (fast(image(batch)) ** 2).sum(), (net(image(batch)) ** 2).sum()
        found.backward()
        got = net[0].weight.grad().asnumpy().copy()
        want.backward()
        np.testing.assert_allclose(got, net[0].weight.grad().asnumpy(), rtol=1e-3, atol=1e-2)
    assert len(pools(fast)) == 1


def test_shapes_not_seen_for_long_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.nn.entries.MAX_SIGNATURES", 2)
    net = deep(2)
    net(image())
    fast = graphopt.optimize(net, memory="1GB")
    for batch in (1, 2, 3, 4, 1, 2):
        with autograd.record():
            found, want = (fast(image(batch)) ** 2).sum(), (net(image(batch)) ** 2).sum()
        found.backward()
        got = net[0].weight.grad().asnumpy().copy()
        want.backward()
        np.testing.assert_allclose(got, net[0].weight.grad().asnumpy(), rtol=1e-3, atol=1e-4)
    (pool,) = pools(fast)._pools
    assert len(pool.bindings) == 2


def test_each_context_has_the_memory_of_the_largest_shape() -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = deep(2)
    net(image())
    net.collect_params().reset_ctx(contexts)
    fast = graphopt.optimize(net, max_shapes={"data": (16, 3, 40, 40)})
    for batch in (8, 16):
        found = []
        for which in (net, fast):
            parts = mx.gluon.utils.split_and_load(image(batch), contexts)
            with autograd.record():
                losses = [(which(part) ** 2).sum() for part in parts]
            autograd.backward(losses)
            params = [p for p in net.collect_params().values() if p.grad_req != "null"]
            found.append([array.asnumpy() for p in params for array in p.list_grad()])
        near((found[0], found[1]))
    entries = fast.graphopt_state.compiled.entries
    largest = [entry for entry in entries if "16,3,40,40" in entry.types]
    for ctx in contexts:
        (pool,) = pools(fast, ctx)._pools
        assert len(pool.bindings) == 3  # of the largest shape and of two that came
    assert len(largest) == 2


def test_a_call_that_is_refused_leaves_all_as_it_was() -> None:
    net, x = deep(), image()
    net(x)
    fast = graphopt.optimize(net, max_shapes={"data": (8, 3, 32, 32)})
    found = []
    for which in (net, fast):
        net.collect_params().zero_grad()
        with autograd.record():
            out = which(x)
            if which is fast:
                with pytest.raises(InputError, match="nothing was run"):
                    fast(mx.nd.ones((9, 3, 32, 32)))
            loss = (out**2).sum()
        loss.backward()
        params = net.collect_params().values()
        grads = [p.grad().asnumpy().copy() for p in params if p.grad_req != "null"]
        found.append([out.asnumpy(), *grads])
        if which is fast:
            with pytest.raises(InputError), autograd.record():
                fast(mx.nd.ones((9, 3, 32, 32)))
            kept = [p.grad().asnumpy() for p in params if p.grad_req != "null"]
            for before, after in zip(grads, kept, strict=True):
                np.testing.assert_array_equal(before, after)
    near((found[0], found[1]))


@pytest.mark.parametrize("shape", [(17, 3, 32, 32), (1, 3, 33, 41)])
def test_a_larger_shape_is_refused_by_name(shape: tuple[int, ...]) -> None:
    net = deep(2)
    net(image())
    fast = graphopt.optimize(net, max_shapes={"data": (16, 3, 40, 40)})
    with autograd.record():
        fast(image())
        with pytest.raises(InputError, match=r"'data' has shape .* allows \(16, 3, 40, 40\)"):
            fast(mx.nd.ones(shape))


def test_an_unknown_input_in_max_shapes_is_refused() -> None:
    net = deep()
    fast = graphopt.optimize(net, max_shapes={"image": (16, 3, 40, 40)})
    with pytest.raises(InputError, match="the inputs are data"), autograd.record():
        fast(image())


def test_a_net_of_symbols_shares_memory_and_stays_refused() -> None:
    x, weight = mx.sym.var("data"), mx.nd.ones((4, 4))
    weight.attach_grad()

    def model(limit: tuple[int, int]) -> Any:
        made = graphopt.optimize(mx.sym.dot(x, mx.sym.var("w")), max_shapes={"data": limit})
        made.params["w"], made._data = weight, ["data"]
        return made

    fast = model((8, 4))
    for rows in (8, 3):
        with autograd.record():
            loss = fast(mx.nd.ones((rows, 4))).sum()
        loss.backward()
        np.testing.assert_allclose(weight.grad.asnumpy(), rows)
    assert len(fast._compiled) == 2  # the largest shape is compiled once
    wrong = model((8, 5))  # no product with the weight
    for _ in range(2):
        with pytest.raises(InputError), autograd.record():
            wrong(mx.nd.ones((3, 4)))


def squashed() -> Any:
    """A net that takes any dtype."""

    class Squashed(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            for _ in range(4):
                x = F.tanh(F.broadcast_mul(x, F.exp(x * 0.1)))
            return x

    net = Squashed()
    net.initialize()
    return net


@pytest.mark.parametrize("symbolic", [False, True])
def test_each_dtype_has_the_memory_of_the_largest_shape(symbolic: bool) -> None:
    net = squashed()
    plain = net(mx.sym.var("data")) if symbolic else net
    fast = graphopt.optimize(plain, max_shapes={"data": (40, 50)})
    for dtype in ("float32", "float64", "float32", "float64"):
        x = mx.nd.array(np.random.default_rng(0).normal(size=(7, 50)), dtype=dtype)
        x.attach_grad()
        found = []
        for which in (net, fast):
            with autograd.record():
                loss = (which(x) ** 2).sum()
            loss.backward()
            found.append([loss.asnumpy(), x.grad.asnumpy().copy()])
        check((found[0], found[1]))
    memory = fast._memory if symbolic else fast.graphopt_state.compiled._memory
    (pool,) = memory.pools(mx.cpu())._pools
    # The first dtype without and with a gradient of the input; the other came with one.
    assert sorted(len(gradients) for _, gradients in pool.prepared) == [0, 1, 1]
    assert len(pool.bindings) == 3 + 2


def test_gradients_of_inputs_have_the_memory_of_the_largest_shape() -> None:
    net, x = small(), mx.nd.ones((4, 5))
    net(x)
    fast = graphopt.optimize(net, max_shapes={"data": (100, 5)})

    def step(which: Any) -> list[np.ndarray]:
        with autograd.record():
            loss = (which(x) ** 2).sum()
        loss.backward()
        return [net[0].weight.grad().asnumpy().copy()]

    check((step(net), step(fast)))
    (pool,) = pools(fast)._pools
    assert {names for _, names in pool.prepared} == {frozenset()}
    x.attach_grad()
    check(([*step(net), x.grad.asnumpy().copy()], [*step(fast), x.grad.asnumpy().copy()]))
    assert {names for _, names in pool.prepared} == {frozenset(), frozenset(["data"])}
    (largest,) = (e for e in fast.graphopt_state.compiled.entries if "100,5" in e.types)
    assert len(largest.lowered._engine._plans) == 2
    bound = len(pool.bindings)
    check((step(net), step(fast)))
    assert len(pool.bindings) == bound


def test_a_largest_step_with_gradients_of_inputs_beyond_the_budget_is_refused() -> None:
    net, x = small(), mx.nd.ones((4, 40))
    net(x)
    largest = {"data": (200_000, 40)}  # of 32 MB
    budget = least(net, mx.nd.ones(largest["data"]))
    fast = graphopt.optimize(net, memory=budget, max_shapes=largest)

    def step() -> None:
        with autograd.record():
            loss = fast(x).sum()
        loss.backward()

    step()
    x.attach_grad()
    for _ in range(2):
        with pytest.raises(BudgetError, match="cannot run in"):
            step()
    x = mx.nd.ones((4, 40))
    step()
    assert len(pools(fast)) == 1


def test_inputs_that_max_shapes_leaves_out_are_named_where_they_do_not_fit() -> None:
    class Masked(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any, mask: Any) -> Any:
            return F.broadcast_mul(F.tanh(x), mask)

    net = Masked()
    net.initialize()
    fast = graphopt.optimize(net, max_shapes={"data0": (8, 5)})
    for _ in range(2):
        with (
            pytest.raises(InputError, match=r"'data1' \(\(3, 5\)\) varies, too"),
            autograd.record(),
        ):
            fast(mx.nd.ones((3, 5)), mx.nd.ones((3, 5)))
    # A missing parameter is told as without.
    layer = nn.Dense(3)
    fast = graphopt.optimize(layer, max_shapes={"data": (8, 5)})
    with pytest.raises(InputError, match=r"not initialized: call [^;]*$"), autograd.record():
        fast(mx.nd.ones((3, 5)))
