"""Executors whose calls draw numbers, or whose Symbols loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
sym = mx.sym


@pytest.mark.parametrize("is_train", [False, True])
def test_backward_takes_the_numbers_that_forward_drew(is_train: bool) -> None:
    """Dropout that always drops does so in inference as well."""
    symbol = sym.Dropout(sym.var("data"), p=0.5, mode="always")
    fast = graphopt.optimize(symbol.simple_bind(mx.cpu(), data=(40, 50)))
    fast.arg_dict["data"][:] = 1
    for _ in range(3):
        (output,) = fast.forward(is_train=is_train)
        fast.backward([mx.nd.ones((40, 50))], is_train=is_train)
        np.testing.assert_array_equal(fast.grad_dict["data"].asnumpy(), output.asnumpy())


def test_steps_of_a_loop_that_counts() -> None:
    """No gradient comes to the counter; backward may be called twice."""
    i, s, x = sym.var("i"), sym.var("s"), sym.var("x")
    outputs, last = sym.contrib.while_loop(
        cond=lambda i, s: i < 3,
        func=lambda i, s: (s + x.take(i).squeeze(axis=0), (i + 1, s * 2)),
        loop_vars=[i, s],
        max_iterations=3,
    )
    symbol = sym.Group([outputs, last[1]])

    def executor() -> Any:
        arrays = {"i": mx.nd.zeros((1,)), "s": mx.nd.ones((2, 4)), "x": mx.nd.ones((3, 2, 4))}
        gradients = {name: mx.nd.zeros(arrays[name].shape) for name in "sx"}
        requests = {"i": "null", "s": "write", "x": "add"}
        return symbol.bind(mx.cpu(), arrays, gradients, requests)

    fast, plain = graphopt.optimize(executor()), executor()
    for each in (fast, plain):
        for _ in range(3):
            found = each.forward(is_train=True)
            each.backward([mx.nd.ones(y.shape) for y in found])
    fast.backward([mx.nd.ones(y.shape) for y in found])  # an error in MXNet
    plain.grad_dict["x"][:] *= 4 / 3
    for name, want in plain.grad_dict.items():
        if want is not None:
            np.testing.assert_allclose(fast.grad_dict[name].asnumpy(), want.asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("starts", [(100, 100), (1, 100, 1), (1, 1)])
def test_gradients_of_a_loop_that_may_take_no_step(starts: tuple[int, ...]) -> None:
    fast, plain = graphopt.optimize(doubling()), doubling()
    for start in starts:
        for each in (fast, plain):
            each.arg_dict["s"][:] = start
            each.forward(is_train=True)
            each.backward([mx.nd.ones((2, 3))])
        np.testing.assert_allclose(
            fast.outputs[0].asnumpy(), plain.outputs[0].asnumpy(), rtol=1e-6, atol=1e-6
        )
        for name, want in plain.grad_dict.items():
            np.testing.assert_allclose(
                fast.grad_dict[name].asnumpy(), want.asnumpy(), rtol=1e-6, atol=1e-6
            )
    assert "while_loop" in fast.explain()


def test_a_loop_takes_steps_after_it_took_none() -> None:
    """Forward alone: MXNet's backward fails then."""
    fast, plain = graphopt.optimize(doubling()), doubling()
    for start in (100, 1, 100):
        for each in (fast, plain):
            (output,) = each.forward(is_train=True, s=mx.nd.full((2, 3), start))
        want = output.asnumpy()
        np.testing.assert_allclose(fast.outputs[0].asnumpy(), want, rtol=1e-6, atol=1e-6)


def test_a_loop_is_compiled_for_inference() -> None:
    fast, plain = graphopt.optimize(doubling()), doubling()
    for start in (100, 1, 100):
        for each in (fast, plain):
            (output,) = each.forward(s=mx.nd.full((2, 3), start))
        want = output.asnumpy()
        np.testing.assert_allclose(fast.outputs[0].asnumpy(), want, rtol=1e-6, atol=1e-6)
    assert "MXNet's executor" not in fast.explain()


def doubling() -> Any:
    """An executor of ``s = 2 * s + a`` while the sum of s is less than 10, times 3."""
    s, a = sym.var("s"), sym.var("a")
    _, last = sym.contrib.while_loop(
        cond=lambda s: s.sum() < 10,
        func=lambda s: ((s + a,), (s * 2 + a,)),
        loop_vars=[s],
        max_iterations=6,
    )
    arrays = {"s": mx.nd.ones((2, 3)), "a": mx.nd.full((2, 3), 0.1)}
    gradients = {name: mx.nd.zeros((2, 3)) for name in arrays}
    return (last[0] * 3).bind(mx.cpu(), arrays, gradients)
