"""Steps, nets and backward passes that cannot be within a budget, and say why."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError, UnsupportedError
from graphopt.memory.sizes import parse_size
from tests.nn.budgets import deep, image, small

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def test_a_second_backward_is_refused() -> None:
    net = deep()
    net(image())
    fast = graphopt.optimize(net, memory="1GB")
    with autograd.record():
        loss = fast(image()).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(mx.MXNetError, match="leave out retain_graph"):
        loss.backward()


@pytest.mark.parametrize("options", [{"memory": "1GB"}, {"max_shapes": {"data": (8, 3, 32, 32)}}])
def test_a_backward_in_another_mode_than_the_call_is_refused(options: Any) -> None:
    net = deep(1)
    net(image())
    fast = graphopt.optimize(net, **options)
    with autograd.record():
        loss = fast(image()).sum()
    with pytest.raises(mx.MXNetError, match="leave out train_mode=False"):
        loss.backward(train_mode=False)
    with autograd.record(train_mode=False):
        loss = fast(image()).sum()
    loss.backward(train_mode=False)
    got = net[0].weight.grad().asnumpy().copy()
    with autograd.record(train_mode=False):
        loss = net(image()).sum()
    loss.backward(train_mode=False)
    np.testing.assert_allclose(got, net[0].weight.grad().asnumpy(), rtol=1e-4, atol=1e-4)


def test_a_gradient_of_a_gradient_is_refused_at_once() -> None:
    net, x = small(), mx.nd.ones((2, 5))
    net(x)
    fast = graphopt.optimize(net, memory="1GB")
    x.attach_grad()
    with autograd.record():
        loss = fast(x).sum()
        with pytest.raises(mx.MXNetError, match="leave out create_graph"):
            autograd.grad(loss, [x], create_graph=True, retain_graph=True)
        loss.backward()  # nothing ran, so this one can
    found = x.grad.asnumpy().copy()
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    np.testing.assert_allclose(found, x.grad.asnumpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("memory", ["900", "300kB"])
def test_a_budget_below_the_weights_says_the_least(memory: str) -> None:
    net = deep(layers=1)
    net.add(nn.Dense(9000, in_units=5))
    net.initialize(force_reinit=True)
    net(image())
    with pytest.raises(BudgetError) as caught, autograd.record():
        graphopt.optimize(net, memory=memory)(image())
    text = str(caught.value)
    found = re.fullmatch(
        r"a training step of 'net' cannot run in .*: the least is (.*), of which (.*) are inputs,"
        r" parameters and their gradients",
        text,
    )
    assert found is not None, text
    held = sum(p.data().size for p in net.collect_params().values())
    grads = sum(p.grad().size for p in net.collect_params().values() if p.grad_req != "null")
    want = 4 * (held + grads + image().size)
    assert parse_size(found[2]) == pytest.approx(want, rel=0.1)
    assert parse_size(found[1]) > parse_size(found[2]) > parse_size(memory)


def test_a_net_that_does_not_compile_whole_is_refused() -> None:
    class Plain(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3)

        def forward(self, x: Any) -> Any:
            return self.dense(x) if x.sum().asscalar() else x

    net = Plain()
    net.initialize()
    with pytest.raises(UnsupportedError, match="compile whole"), autograd.record():
        graphopt.optimize(net, memory="1GB")(mx.nd.ones((2, 2)))


def test_what_is_refused_once_is_refused_again() -> None:
    net = small()
    net(mx.nd.ones((2, 5)))
    fast = graphopt.optimize(net, memory="2MB", max_shapes={"data": (100_000, 5)})
    for _ in range(2):
        with pytest.raises(BudgetError), autograd.record():
            fast(mx.nd.ones((2, 5)))


def test_sparse_gradients_are_refused_by_name() -> None:
    net = nn.Embedding(10, 4, sparse_grad=True)
    net.initialize()
    with pytest.raises(UnsupportedError, match="row_sparse"), autograd.record():
        graphopt.optimize(net, memory="1GB")(mx.nd.ones((2, 3)))


@pytest.mark.parametrize("options", [{"memory": "1GB"}, {"max_shapes": {"data": (4, 3)}}])
def test_a_shape_that_is_found_as_it_runs_is_refused(options: dict[str, Any]) -> None:
    class Branching(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.contrib.cond(F.sum(x) > 0, lambda: x * 3, lambda: x * 5)

    net = graphopt.optimize(Branching(prefix="net_"), **options)
    with pytest.raises(UnsupportedError, match=r"'net__cond0' \(_cond\)"), autograd.record():
        net(mx.nd.ones((4, 3)))


@pytest.mark.parametrize("options", [{"memory": "1GB"}, {"max_shapes": {"data": (4, 3)}}])
@pytest.mark.parametrize("op", ["_contrib_boolean_mask", "_cond"])
def test_so_is_one_of_a_symbol_and_inference_is_not(op: str, options: dict[str, Any]) -> None:
    x = mx.sym.tanh(mx.sym.var("data"))
    rows = mx.sym.sum(x, axis=1) > 0
    if op == "_cond":
        found = mx.sym.contrib.cond(mx.sym.sum(rows) > 1, lambda: x * 3, lambda: x * 5)
    else:
        found = mx.sym.contrib.boolean_mask(x, rows)
    net = graphopt.optimize(mx.sym.square(found), **options)
    data = mx.nd.array([[1, 2, 3], [-1, -2, -3], [4, 5, 6], [-3, 2, 0]])
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=rf"\({op}\) is known only"), autograd.record():
            net(data)
    want = np.tanh(data.asnumpy())
    want = 9 * want**2 if op == "_cond" else want[[0, 2]] ** 2
    np.testing.assert_allclose(net(data).asnumpy(), want, rtol=1e-4, atol=1e-6)
