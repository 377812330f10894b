"""Small training graphs on MXNet's executor, on the arrays of an optimized one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.modules import prepared

mx = import_mxnet()
sym = mx.sym
SHAPES: dict[str, tuple[int, ...]] = {"data": (4, 3, 8, 8), "label": (4, 5)}
TOLD = "training on these arrays: MXNet's executor, prepared once"


def head(x: Any) -> Any:
    x = sym.FullyConnected(x, num_hidden=5, name="fc")
    return sym.LinearRegressionOutput(x, sym.var("label"), name="out")


def convolutions() -> Any:
    x = sym.Convolution(sym.var("data"), num_filter=6, kernel=(3, 3), name="conv")
    x = sym.Activation(sym.BatchNorm(x, fix_gamma=False, name="bn"), act_type="relu")
    return head(sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max"))


def in_a_loop() -> Any:
    weight = sym.var("w", shape=(3, 8, 8))

    def body(row: Any, total: Any) -> tuple[Any, Any]:  # no recurrence mixes samples
        return row, sym.tanh(total + sym.reverse(row, axis=0) * weight)

    _, found = sym.contrib.foreach(body, sym.var("data"), weight * 0)
    return sym.LinearRegressionOutput(found, sym.var("label", shape=(3, 8, 8)), name="out")


def bound(symbol: Any, grad_req: Any = "write") -> Any:
    known = {n: s for n, s in SHAPES.items() if n != "label" or symbol.attr_dict().get("w") is None}
    executor = symbol.simple_bind(mx.cpu(), grad_req=grad_req, **known)
    rng = np.random.default_rng(0)
    for array in executor.arg_arrays:
        array[:] = rng.standard_normal(array.shape) * 0.5
    return executor


def pair(symbol: Any, grad_req: Any = "write") -> tuple[Any, Any]:
    return graphopt.optimize(bound(symbol, grad_req)), bound(symbol, grad_req)


def numbers(executor: Any) -> list[Any]:
    mx.nd.waitall()  # nobody waits for what MXNet's executor writes into states
    found = [*executor.outputs, *executor.aux_arrays, *executor.grad_arrays]
    return [array.asnumpy() for array in found if array is not None]


def assert_alike(fast: Any, plain: Any) -> None:
    for got, want in zip(numbers(fast), numbers(plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def step(executor: Any, number: int) -> None:
    data = np.random.default_rng(number).standard_normal(SHAPES["data"])
    executor.forward(is_train=True, data=data)
    executor.backward()
    for array, gradient in zip(executor.arg_arrays, executor.grad_arrays, strict=True):
        if gradient is not None:
            array -= 0.01 * gradient


def test_steps_and_predictions_in_turns() -> None:
    fast, plain = pair(convolutions())
    for number in range(6):
        for executor in (fast, plain):
            step(executor, number)
        assert_alike(fast, plain)
        if number % 2:
            for executor in (fast, plain):
                executor.forward(is_train=False)
            assert_alike(fast, plain)
    assert TOLD in fast.explain()


def test_backward_twice() -> None:
    fast, plain = pair(convolutions())
    for number in range(3):
        for executor in (fast, plain):
            step(executor, number)
    gradients = []
    fast.forward(is_train=True)
    for _ in range(2):
        for gradient in fast.grad_arrays:
            if gradient is not None:
                gradient[:] = np.nan
        fast.backward()
        gradients.append([g.asnumpy() for g in fast.grad_arrays if g is not None])
    for got, want in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    for executor in (fast, plain):  # states were written by one more backward
        executor.aux_arrays[0][:] = 0.5
        executor.aux_arrays[1][:] = 0.5
        step(executor, 3)
    assert_alike(fast, plain)
    assert TOLD not in fast.explain()


def test_some_gradients_are_null() -> None:
    request = dict.fromkeys(convolutions().list_arguments(), "write") | {"conv_weight": "null"}
    fast, plain = pair(convolutions(), request | {"data": "null", "label": "null"})
    for number in range(4):
        for executor in (fast, plain):
            step(executor, number)
        assert_alike(fast, plain)
    assert TOLD in fast.explain()


def test_another_head() -> None:
    x = sym.Convolution(sym.var("data"), num_filter=2, kernel=(3, 3), name="conv")
    symbol = sym.Group([sym.Activation(x, act_type="softrelu"), sym.mean(x)])
    found = []
    for optimize in (lambda executor: executor, graphopt.optimize):
        executor = symbol.simple_bind(mx.cpu(), data=SHAPES["data"])
        for array in executor.arg_arrays:
            array[:] = np.random.default_rng(1).standard_normal(array.shape)
        executor = optimize(executor)
        for number in range(4):
            outputs = executor.forward(is_train=True)
            executor.backward([mx.nd.ones_like(output) * (number + 2) for output in outputs])
        found.append(executor)
    assert_alike(*found)
    assert TOLD in found[1].explain()


def test_masks_of_each_backward_are_those_of_forward() -> None:
    data = sym.var("data")
    x = sym.Convolution(data, num_filter=3, kernel=(1, 1), name="conv")
    symbol = sym.Dropout(sym.sigmoid(x) + data, p=0.5)
    fast = graphopt.optimize(symbol.simple_bind(mx.cpu(), data=SHAPES["data"]))
    fast.arg_dict["data"][:] = 1  # of weights that are zero
    masks = []
    for _ in range(5):
        (output,) = fast.forward(is_train=True)
        masks.append(output.asnumpy() / 1.5)
        for _ in range(2):
            fast.backward(mx.nd.ones_like(output))
            np.testing.assert_allclose(fast.grad_dict["data"].asnumpy(), masks[-1], rtol=1e-6)
    assert {*np.unique(np.stack(masks)).tolist()} == {0.0, 2.0}
    assert all((one != other).any() for one, other in pairwise(masks))


@pytest.mark.parametrize(
    ("make", "grad_req"),
    [(in_a_loop, "write"), (convolutions, "add")],
    ids=["loop", "add"],
)
def test_what_autograd_computes(make: Any, grad_req: str) -> None:
    fast, plain = pair(make(), grad_req)
    for number in range(3):
        for executor in (fast, plain):
            step(executor, number)
    assert TOLD not in fast.explain()
    assert_alike(fast, plain)


def test_a_large_step_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "_MOST_BYTES", 100)
    fast, plain = pair(convolutions())
    for number in range(3):
        for executor in (fast, plain):
            step(executor, number)
    assert_alike(fast, plain)
    assert TOLD not in fast.explain()


def test_without_the_bridge_autograd_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared.bridge, "why_not", lambda _: "there is no compiler")
    fast, plain = pair(convolutions())
    for number in range(3):
        for executor in (fast, plain):
            step(executor, number)
    assert_alike(fast, plain)
    assert TOLD not in fast.explain()


def test_executors_of_two_shapes() -> None:
    fast, plain = pair(convolutions())
    smaller = [e.reshape(data=(2, 3, 8, 8), label=(2, 5)) for e in (fast, plain)]
    for _ in range(4):
        for executors in ((fast, plain), smaller):
            for executor in executors:
                for name in SHAPES:
                    shape = executor.arg_dict[name].shape
                    executor.arg_dict[name][:] = np.random.default_rng(2).standard_normal(shape)
                executor.forward(is_train=True)
                executor.backward()
                mx.nd.waitall()  # states are those of both
            assert_alike(*executors)
    assert all(TOLD in executor.explain() for executor in (fast, smaller[0]))


def test_a_loss_of_gluons_on_outputs() -> None:
    x = sym.Convolution(sym.var("data"), num_filter=2, kernel=(3, 3), name="conv")
    losses = []
    for optimize in (lambda executor: executor, graphopt.optimize):
        executor = x.simple_bind(mx.cpu(), data=SHAPES["data"])
        for array in executor.arg_arrays:
            array[:] = np.random.default_rng(1).standard_normal(array.shape)
        executor, found = optimize(executor), []
        for _ in range(4):
            with mx.autograd.record():
                (output,) = executor.forward(is_train=True)
                output.attach_grad()
                loss = (output**2).mean()
            loss.backward()
            executor.backward([output.grad])
            executor.arg_dict["conv_weight"][:] -= 0.1 * executor.grad_dict["conv_weight"]
            found.append(loss.asscalar())
        losses.append(found)
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_monitor_between_forward_and_backward() -> None:
    fast, plain = pair(convolutions())
    for number in range(3):
        for executor in (fast, plain):
            step(executor, number)
    for executor in (fast, plain):
        executor.forward(is_train=True)
    fast.set_monitor_callback(lambda name, array: None)
    for executor in (fast, plain):
        executor.backward()
    assert_alike(fast, plain)


def test_an_output_twice_has_both_gradients() -> None:
    y = sym.tanh(sym.FullyConnected(sym.var("data"), num_hidden=3, name="fc"))
    fast = graphopt.optimize(sym.Group([y, y]).simple_bind(mx.cpu(), data=(2, 4)))
    for array in fast.arg_arrays:
        array[:] = 0.1
    for _ in range(4):
        one, other = fast.forward(is_train=True)
        fast.backward([mx.nd.ones_like(one), 10 * mx.nd.ones_like(other)])
        want = 11 * (1 - one.asnumpy() ** 2).sum(axis=0)
        np.testing.assert_allclose(fast.grad_dict["fc_bias"].asnumpy(), want, rtol=1e-5)


def test_buckets_share_memory() -> None:
    fast, _ = pair(convolutions())
    others = [fast.reshape(data=(n, 3, 8, 8), label=(n, 5)) for n in (3, 2)]
    for _ in range(3):
        for executor in (fast, *others):
            executor.forward(is_train=True)
            executor.backward()
    assert len({id(executor.group) for executor in (fast, *others)}) == 1
    assert fast.group.pool is not None
    plain = bound(convolutions())
    for executor in others:  # each has computed in what the others computed in
        for name in SHAPES:
            executor.arg_dict[name][:] = 0.5
        executor.forward(is_train=True)
        executor.backward()
    smaller = plain.reshape(data=(2, 3, 8, 8), label=(2, 5))
    for name in SHAPES:
        smaller.arg_dict[name][:] = 0.5
    smaller.forward(is_train=True)
    smaller.backward()
    mx.nd.waitall()
    for got, want in zip(others[-1].outputs, smaller.outputs, strict=True):
        np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-3, atol=1e-3)


def test_outputs_that_onednn_has_laid_out() -> None:
    symbol = sym.Convolution(
        sym.var("data"), num_filter=64, kernel=(80,), stride=(4,), no_bias=True, name="conv"
    )
    found = []
    for optimize in (lambda executor: executor, graphopt.optimize):
        executor = symbol.simple_bind(mx.cpu(), data=(8, 1, 4000))
        for array in executor.arg_arrays:
            array[:] = np.random.default_rng(1).standard_normal(array.shape) * 0.1
        executor = optimize(executor)
        for _ in range(3):
            for is_train in (False, True):
                executor.forward(is_train=is_train)
            executor.backward(executor.outputs)
        mx.nd.waitall()
        found.append(executor)
    for got, want in zip(numbers(found[1]), numbers(found[0]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
