"""Executors bound to the memory of another one: the one that ran last keeps what it computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.bound import BoundEngine
from graphopt.compat import import_mxnet

mx = import_mxnet()
NAMES = ["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]


def dense(*, is_loss: bool) -> Any:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc1")
    out = mx.sym.FullyConnected(mx.sym.tanh(hidden), num_hidden=3, name="fc2")
    return mx.sym.LinearRegressionOutput(out, mx.sym.var("label")) if is_loss else out


def convolutions(*, is_loss: bool) -> Any:
    image = mx.sym.reshape(mx.sym.var("data"), (-1, 1, 2, 3))
    hidden = mx.sym.Convolution(image, num_filter=8, kernel=(1, 1), name="fc1")
    hidden = mx.sym.tanh(mx.sym.BatchNorm(hidden, name="norm"))
    out = mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2")
    return mx.sym.LinearRegressionOutput(out, mx.sym.var("label")) if is_loss else out


def shapes_of(symbol: Any, rows: int) -> dict[str, tuple[int, int]]:
    shapes = {"data": (rows, 6), "label": (rows, 3)}
    return {name: shape for name, shape in shapes.items() if name in symbol.list_inputs()}


def filled(executor: Any) -> Any:
    for seed, (_, array) in enumerate(executor.arg_dict.items()):
        array[:] = np.random.default_rng(seed).normal(size=array.shape) * 0.5
    return executor


def learned(executor: Any) -> dict[str, np.ndarray]:
    return {name: executor.grad_dict[name].asnumpy() for name in NAMES}


@pytest.mark.parametrize("is_loss", [False, True])
@pytest.mark.parametrize("make", [dense, convolutions])
def test_backward_after_another_has_run(make: Any, is_loss: bool) -> None:
    symbol = make(is_loss=is_loss)
    first = graphopt.optimize(filled(symbol.simple_bind(mx.cpu(), **shapes_of(symbol, 4))))
    second = filled(first.reshape(allow_up_sizing=True, **shapes_of(symbol, 5)))
    assert second.group is first.group
    for _ in range(3):  # call by call, then on the same arrays
        first.forward(is_train=True)
        second.forward(is_train=True)
        for executor, rows in ((first, 4), (second, 5)):
            alone = filled(symbol.simple_bind(mx.cpu(), **shapes_of(symbol, rows)))
            alone.forward(is_train=True)
            heads = [] if is_loss else [mx.nd.ones_like(alone.outputs[0]) * 2]
            alone.backward(heads)
            want = learned(alone)
            executor.backward(heads)
            for name, found in learned(executor).items():
                np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-4)


def test_only_the_last_one_keeps_what_backward_reads() -> None:
    symbol = dense(is_loss=True)
    first = graphopt.optimize(filled(symbol.simple_bind(mx.cpu(), **shapes_of(symbol, 4))))
    second = filled(first.reshape(allow_up_sizing=True, **shapes_of(symbol, 5)))
    for _ in range(2):
        for executor in (first, second):
            executor.forward(is_train=True)
            executor.backward()
    engines = [executor._direct[True] for executor in (first, second)]
    assert all(isinstance(engine, BoundEngine) for engine in engines)
    assert [engine._stash is not None for engine in engines] == [False, True]


def test_dropped_units_stay_dropped_in_backward() -> None:
    x = mx.sym.var("data")
    hidden = mx.sym.FullyConnected(x, num_hidden=8, name="fc1")
    hidden = mx.sym.Dropout(mx.sym.tanh(hidden), p=0.5)
    symbol = mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2")
    first = graphopt.optimize(filled(symbol.simple_bind(mx.cpu(), **shapes_of(symbol, 4))))
    second = filled(first.reshape(allow_up_sizing=True, **shapes_of(symbol, 5)))
    for _ in range(3):
        (output,) = first.forward(is_train=True)
        before = output.asnumpy()
        second.forward(is_train=True)
        first.backward([mx.nd.ones_like(output)])
    assert isinstance(first._direct[True], BoundEngine)
    np.testing.assert_array_equal(first.outputs[0].asnumpy(), before)


def test_buckets_are_one_group() -> None:
    def sym_gen(rows: int) -> Any:
        return dense(is_loss=True), ("data",), ("label",)

    module = graphopt.optimize(mx.mod.BucketingModule(sym_gen, default_bucket_key=6))
    module.bind([("data", (6, 6))], [("label", (6, 3))])
    module.init_params()
    for rows in (4, 6, 5):
        shapes = shapes_of(dense(is_loss=True), rows)
        batch = mx.io.DataBatch(
            *([mx.nd.ones(shape)] for shape in shapes.values()),
            bucket_key=rows,
            provide_data=[("data", shapes["data"])],
            provide_label=[("label", shapes["label"])],
        )
        module.forward_backward(batch)
    assert len(module.executors()) == 3
    assert len({id(executor.group) for executor in module.executors()}) == 1
    assert len({id(executor.model.plans) for executor in module.executors()}) == 1
