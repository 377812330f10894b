"""Gradients of nets with fused kernels: added, retained, of some parameters, on two contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.kernels.gate_support import data, gate, is_fused, same

mx = import_mxnet()
autograd = mx.autograd


def parameters(net: Any) -> dict[str, Any]:
    return {name: p for name, p in net.collect_params().items() if p.grad_req != "null"}


def both() -> tuple[Any, Any]:
    """A net, and the optimized view of a net with the same parameters."""
    plain, net = gate(), gate()
    pairs = zip(plain.collect_params().values(), net.collect_params().values(), strict=True)
    for source, target in pairs:
        target.set_data(source.data())
    return plain, graphopt.optimize(net)


def slopes(net: Any) -> list[Any]:
    return [p.grad().asnumpy().copy() for p in parameters(net).values()]


def near(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want) > 0
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def test_gradients_that_add() -> None:
    found = []
    for net in both():
        for p in parameters(net).values():
            p.grad_req = "add"
            p.zero_grad()
        for seed in range(3):
            with autograd.record():
                loss = (net(data(5, 4, seed=seed)) ** 2).sum()
            loss.backward()
        found.append(slopes(net))
    near(found[1], found[0])


def test_gradients_that_add_to_an_input() -> None:
    found = []
    for net in both():
        x = data(5, 4)
        x.attach_grad(grad_req="add")
        for _ in range(2):
            with autograd.record():
                loss = (net(x) ** 2).sum() + (x * x).sum()
            loss.backward()
        found.append([x.grad.asnumpy()])
    near(found[1], found[0])


def test_two_calls_before_one_backward() -> None:
    found = []
    for net in both():
        with autograd.record():
            loss = (net(data(5, 4)) * net(data(5, 4, seed=1))).sum() + net(data(3, 4)).sum()
        loss.backward()
        found.append(slopes(net))
    assert found[0][0].any()
    near(found[1], found[0])


def test_a_graph_that_is_retained() -> None:
    found = []
    for net in both():
        with autograd.record():
            loss = (net(data(5, 4)) ** 2).sum()
        loss.backward(retain_graph=True)
        first = slopes(net)
        loss.backward()
        for once, again in zip(first, slopes(net), strict=True):
            np.testing.assert_array_equal(again, once)
        found.append(first)
    near(found[1], found[0])


def test_gradients_of_some_parameters_only() -> None:
    found = []
    for net in both():
        for name, p in parameters(net).items():
            if "scale" in name or "gamma" in name:
                p.grad_req = "null"
        with autograd.record():
            loss = (net(data(5, 4)) ** 2).sum()
        loss.backward()
        found.append(slopes(net))
    near(found[1], found[0])


class BiasOfData(mx.gluon.HybridBlock):
    """Sums data without a gradient and a parameter, whose gradient reads none of the data."""

    def hybrid_forward(self, F: Any, x: Any, bias: Any) -> Any:
        return F.sum(F.broadcast_add(F.BlockGrad(x), bias), axis=2)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 1), (1, 4, 1), (3, 4, 1), (3, 4, 6)], ids=str)
def test_sums_along_axes_of_data_alone(shape: tuple[int, ...]) -> None:
    plain, found = BiasOfData(), []
    for net in (plain, graphopt.optimize(BiasOfData())):
        bias = data(*shape, seed=1)
        bias.attach_grad()
        with autograd.record():
            out = net(data(3, 4, 6), bias)
        out.backward()
        found.append([out.asnumpy(), bias.grad.asnumpy()])
    near(found[1], found[0])


def test_several_contexts() -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = gate(contexts)
    fast = graphopt.optimize(net)
    for ctx in contexts:
        x = data(5, 4).as_in_context(ctx)
        got = fast(x)
        assert got.ctx == ctx
        same(got, net(x))
    with autograd.record():
        losses = [(fast(data(5, 4).as_in_context(ctx)) ** 2).sum() for ctx in contexts]
    autograd.backward(losses)
    assert is_fused(fast)
    for p in parameters(net).values():
        first, second = (grad.asnumpy() for grad in p.list_grad())
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)
