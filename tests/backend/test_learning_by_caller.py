"""Small graphs that the calling thread runs forward and backward: which, and on what arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.caller import LearningEngine
from graphopt.backend.lower import lower
from graphopt.backend.small import in_kernels, learns_by_caller
from graphopt.compat import import_mxnet
from tests.backend.learning_support import Net, assert_same, gate, learnt, noise, normed

mx = import_mxnet()


def graph_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    lifted = graphopt.lift(Net(function), dict(zip(("data0", "data1"), shapes, strict=True)))
    return graphopt.run(lifted, mode="training").graph


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


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 8), "float16"), ((4, 8), "float64"), ((3,), "float32"), ((8, 4), "float32")],
)
@pytest.mark.parametrize("rows", [4, 4096])  # run by the caller, and by MXNet's engine
def test_marked_gradients_unlike_their_arrays_are_refused(
    shape: tuple[int, ...], dtype: str, rows: int
) -> None:
    x, w = noise(rows, 8), noise(8, seed=1)
    shape = tuple(rows if extent == 4 else extent for extent in shape)
    found = []
    for net in (Net(gate), graphopt.optimize(Net(gate))):
        learnt(net, x, w)
        array = mx.nd.zeros(shape, dtype=dtype)
        mx.autograd.mark_variables([x, w], [array, mx.nd.zeros_like(w)])
        with mx.autograd.record():
            y = net(x, w)
        with pytest.raises(mx.MXNetError):
            y.backward()
        assert_same([array.asnumpy()], [np.zeros(shape)])
        found.append(learnt(net, x, w))  # it goes on
    assert_same(found[1], found[0])
