"""Executors that are bound, called a few times and dropped, again and again."""

from __future__ import annotations

from typing import Any

import numpy as np

import graphopt
from graphopt.compat import import_mxnet
from graphopt.modules.stay import FEW

mx = import_mxnet()
sym = mx.sym
BRIEF = "MXNet's executor runs it: others of this graph were dropped after few calls"
SHAPE = (4, 6)


def symbol() -> Any:
    x = sym.FullyConnected(sym.var("data"), num_hidden=5, name="fc")
    return sym.LinearRegressionOutput(x, sym.var("label"), name="out")


def bound() -> Any:
    executor = symbol().simple_bind(mx.cpu(), data=SHAPE)
    rng = np.random.default_rng(0)
    for array in executor.arg_arrays:
        array[:] = rng.standard_normal(array.shape)
    return executor


def step(executor: Any) -> list[Any]:
    executor.forward(is_train=True)
    executor.backward()
    return [a.asnumpy() for a in (*executor.outputs, *executor.grad_arrays)]


def used(calls: int) -> str:
    """What an executor tells that is dropped after so many calls."""
    executor, want = graphopt.optimize(bound()), step(bound())
    for _ in range(calls):
        for got, expected in zip(step(executor), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    return str(executor.explain())


def test_what_is_dropped_after_few_calls_is_mxnets_from_the_fourth_on() -> None:
    assert [BRIEF in used(2) for _ in range(5)] == [False] * 3 + [True] * 2


def test_what_stays_is_compiled_after_few_calls() -> None:
    for _ in range(3):
        used(1)
    assert BRIEF in used(FEW)
    # That one stayed long enough, so the next one is compiled at once.
    assert BRIEF not in used(1)
    for _ in range(2):
        used(1)
    assert BRIEF not in used(FEW + 1)
    for _ in range(3):
        used(1)
    assert BRIEF not in used(FEW + 1)


def test_executors_without_a_call_tell_nothing() -> None:
    for _ in range(5):
        used(0)
    assert BRIEF not in used(1)


def test_strict_executors_are_compiled() -> None:
    for _ in range(4):
        used(1)
    executor = graphopt.optimize(bound(), strict=True)
    step(executor)
    assert BRIEF not in executor.explain()


def test_a_monitor_stays_with_what_is_dropped_soon() -> None:
    for _ in range(4):
        used(1)
    executor, seen = graphopt.optimize(bound()), []
    step(executor)
    executor.set_monitor_callback(lambda name, _: seen.append(name))
    for _ in range(FEW + 1):
        seen.clear()
        step(executor)
        assert b"fc_output" in seen
    assert "a monitor looks at it" in executor.explain()


def test_a_module_bound_anew_for_each_batch() -> None:
    symbols = sym.softmax(sym.FullyConnected(sym.var("data"), num_hidden=3))
    plain = mx.mod.Module(symbols, label_names=None)
    fast = graphopt.optimize(mx.mod.Module(symbols, label_names=None))
    plain.bind([("data", SHAPE)], for_training=False)
    plain.init_params()
    for number in range(1, 7):
        data = mx.nd.random.uniform(shape=(number, SHAPE[1]))
        found = []
        for module in (plain, fast):
            module.bind([("data", data.shape)], for_training=False, force_rebind=True)
            module.set_params(*plain.get_params())
            module.forward(mx.io.DataBatch([data]), is_train=False)
            found.append(module.get_outputs()[0].asnumpy())
        np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
    assert BRIEF in fast.explain()
