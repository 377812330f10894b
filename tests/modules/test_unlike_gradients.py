"""Arrays for gradients of another dtype or shape than their arguments', as MXNet takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
S = mx.sym
Wrap = Callable[[Any], Any]
BOTH: list[Wrap] = [lambda given: given, graphopt.optimize]
SHAPE = (4, 6)


def exp() -> Any:
    return S.exp(S.var("x"))


def dense() -> Any:
    return S.FullyConnected(S.var("x"), S.ones((6, 6)), num_hidden=6, no_bias=True)


def softmax() -> Any:
    return S.softmax(S.var("x"), length=S.full((4,), 3, dtype="int32"), use_length=True, axis=1)


def gradient(wrap: Wrap, symbol: Any, dtype: str, array: Any, request: str = "write") -> Any:
    """What is in ``array`` behind some steps; ``None`` where MXNet's error was raised."""
    x = mx.nd.array(np.arange(24).reshape(SHAPE) % 5, dtype=dtype)
    executor = wrap(symbol.bind(mx.cpu(), {"x": x}, {"x": array}, request))
    head = mx.nd.array(np.arange(24).reshape(SHAPE), dtype=dtype)
    try:
        for _ in range(3):
            executor.forward(is_train=True)
            executor.backward(head)
        return array.asnumpy()
    except mx.MXNetError:
        return None


@pytest.mark.parametrize("make", [exp, dense, softmax], ids=["exp", "dense", "softmax"])
@pytest.mark.parametrize(
    ("dtype", "other"),
    [("float32", "float16"), ("float32", "float64"), ("float64", "float32")],
)
def test_gradients_of_another_dtype(make: Callable[[], Any], dtype: str, other: str) -> None:
    if make is dense and dtype == "float64":
        pytest.skip("its weight is float32")
    want, got = (gradient(wrap, make(), dtype, mx.nd.zeros(SHAPE, dtype=other)) for wrap in BOTH)
    assert (got is None) == (want is None)
    if want is not None:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_gradients_of_another_dtype_that_nobody_asks_for() -> None:
    array = mx.nd.zeros(SHAPE, dtype="float16")
    np.testing.assert_allclose(gradient(graphopt.optimize, exp(), "float32", array, "null"), 0)


def test_gradients_in_another_shape() -> None:
    want, got = (gradient(wrap, exp(), "float32", mx.nd.zeros((6, 4))) for wrap in BOTH)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_arrays_with_too_few_numbers_are_refused() -> None:
    with pytest.raises(mx.MXNetError, match=r"gradient of 'x' is float32\(3,\) and 'x' float32"):
        graphopt.optimize(exp().bind(mx.cpu(), {"x": mx.nd.zeros(SHAPE)}, {"x": mx.nd.zeros((3,))}))


def test_it_says_why_mxnets_executor_runs() -> None:
    module = S.exp(S.var("x")).bind(
        mx.cpu(), {"x": mx.nd.zeros(SHAPE)}, {"x": mx.nd.zeros(SHAPE, dtype="float16")}
    )
    kept = graphopt.optimize(module)
    assert kept is module
    assert "float16(4, 6) and 'x' float32(4, 6)" in kept.graphopt_why_plain
