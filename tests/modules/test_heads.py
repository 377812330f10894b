"""Gradients of outputs that executors are given, of whatever form MXNet's take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
sym = mx.sym


def normalized(x: Any) -> Any:
    return sym.GroupNorm(x, num_groups=2, eps=1e-2, name="norm")


def dense(x: Any) -> Any:
    return sym.FullyConnected(x, num_hidden=3, name="fc")


NETS = {"norm": normalized, "square": lambda x: x * x, "dense": dense, "view": sym.Flatten}


def gradients(
    symbol: Any, dtype: str, heads: Callable[[Any], list[Any]], *, optimized: bool
) -> list[np.ndarray]:
    """Of three steps: the second and third may run in another way than the first."""
    rng = np.random.default_rng(0)
    shapes, _, _ = symbol.infer_shape(data=(4, 2, 1, 3))
    names = symbol.list_arguments()
    arrays = [mx.nd.array(rng.uniform(0.2, 1, size=s), dtype=dtype) for s in shapes]
    places = [mx.nd.zeros(s, dtype=dtype) for s in shapes]
    executor = symbol.bind(mx.cpu(), dict(zip(names, arrays, strict=True)), places)
    if optimized:
        executor = graphopt.optimize(executor)
    for _ in range(3):
        (output,) = executor.forward(is_train=True)
        executor.backward(heads(output))
    return [place.asnumpy() for place in places]


def check(symbol: Any, dtype: str, heads: Callable[[Any], list[Any]]) -> None:
    found, want = (gradients(symbol, dtype, heads, optimized=o) for o in (True, False))
    limit = 2e-2 if dtype == "float16" else 1e-4
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=limit, atol=limit)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(
    ("dtype", "of_head"),
    [("float32", "float64"), ("float64", "float32"), ("float32", "int32"), ("float16", "float32")],
)
def test_of_another_dtype(net: str, dtype: str, of_head: str) -> None:
    if (net, dtype) == ("dense", "float16"):
        pytest.skip("MXNet has no float16 products on CPUs")

    def heads(y: Any) -> list[Any]:
        numbers = np.random.default_rng(1).permutation(y.size).reshape(y.shape) % 3
        return [mx.nd.array(numbers, dtype=of_head)]

    check(NETS[net](sym.var("data")), dtype, heads)


@pytest.mark.parametrize("stype", ["row_sparse", "csr"])
def test_sparse(stype: str) -> None:
    def heads(y: Any) -> list[Any]:
        numbers = np.arange(y.size, dtype="float32").reshape(y.shape)
        numbers[1::2] = 0
        return [mx.nd.array(numbers).tostype(stype)]

    check(sym.tanh(sym.Flatten(sym.var("data"))), "float32", heads)


def test_more_than_outputs() -> None:
    check(normalized(sym.var("data")), "float32", lambda y: [y * 2, y])


@pytest.mark.parametrize("op", [sym.BlockGrad, sym.shape_array, sym.argmax, sym.ones_like])
def test_where_none_comes_through(op: Any) -> None:
    check(op(sym.var("data")), "float32", lambda _y: [mx.nd.ones((7,))])


def test_before_anything_was_computed() -> None:
    def gradient(*, optimized: bool) -> np.ndarray:
        given, place = mx.nd.array([[1, 2], [3, 4]]), mx.nd.zeros((2, 2))
        x = sym.var("data")
        executor = (x * x).bind(mx.cpu(), {"data": given}, {"data": place})
        if optimized:
            executor = graphopt.optimize(executor)
        executor.backward([mx.nd.ones((2, 2))])
        return place.asnumpy()

    np.testing.assert_allclose(gradient(optimized=True), gradient(optimized=False))


@pytest.mark.parametrize("of_head", [lambda g: g, lambda g: g[:], lambda g: g.reshape((4, 3))])
@pytest.mark.parametrize("kind", ["FullyConnected", "dot", "tanh"])
def test_in_memory_of_a_gradient(kind: str, of_head: Callable[[Any], Any]) -> None:
    """Back-propagation through time by hand: a step's gradient of its state is the next head."""
    state, w = sym.var("state"), sym.var("w")
    symbol = {
        "FullyConnected": lambda: sym.FullyConnected(state, w, num_hidden=3, no_bias=True),
        "dot": lambda: sym.dot(state, w),
        "tanh": lambda: sym.tanh(sym.broadcast_mul(state, sym.sum(w, axis=0))),
    }[kind]()

    def found(*, optimized: bool) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        shapes = {"state": (4, 3), "w": (3, 3)}
        arguments = {name: mx.nd.array(rng.normal(size=s)) for name, s in shapes.items()}
        places = {name: mx.nd.array(rng.normal(size=s)) for name, s in shapes.items()}
        executor = symbol.bind(mx.cpu(), arguments, places)
        if optimized:
            executor = graphopt.optimize(executor)
        numbers = []
        for _ in range(3):
            executor.forward(is_train=True)
            executor.backward([of_head(places["state"])])
            numbers += [place.asnumpy() for place in places.values()]
        return numbers

    for one, other in zip(found(optimized=True), found(optimized=False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
