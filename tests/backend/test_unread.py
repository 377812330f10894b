"""Inputs that passes leave no reader of: their gradients are zeros, as in MXNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.unread import reading_all
from graphopt.compat import import_mxnet
from graphopt.ir.parser import parse

mx = import_mxnet()


class Memory(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Reads the last four rows of its memory and of data."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.memory = self.params.get("memory", shape=(4, 3), init="zeros")

    def hybrid_forward(self, F: Any, x: Any, memory: Any) -> Any:
        both = F.concat(memory, x, dim=0)
        return F.tanh(F.slice_axis(both, axis=0, begin=-4, end=None))


Wrap = Callable[[Any], Any]


@pytest.mark.parametrize("learns_x", [False, True])
def test_parameters_that_some_sizes_leave_out(learns_x: bool) -> None:
    def trained(wrap: Wrap) -> list[Any]:
        net = Memory()
        net.initialize()
        options = {"learning_rate": 1.0, "wd": 0.5}
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", options)
        called, found = wrap(net), []
        for rows in (2, 4, 4, 4, 3):
            x = mx.nd.ones((rows, 3))
            if learns_x:
                x.attach_grad()
            with mx.autograd.record():
                loss = called(x).sum()
            loss.backward()
            trainer.step(1)
            found += [net.memory.data().asnumpy(), net.memory.grad().asnumpy()]
            found += [x.grad.asnumpy()] if learns_x else []
        return found

    wanted = trained(lambda net: net)
    for got, want in zip(trained(graphopt.optimize), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_of_an_output_without_axes(dtype: str) -> None:
    mx.npx.set_np()
    try:

        class Net(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
            def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
                return (F.np.ones_like(y).sum() * x).sum()

        found = []
        for wrap in (lambda net: net, graphopt.optimize):
            x, y = mx.np.ones((2, 3)), mx.np.ones((4, 5), dtype=dtype)
            for array in (x, y):
                array.attach_grad()
                array.grad[:] = 7
            with mx.autograd.record():
                loss = wrap(Net())(x, y.astype("float32"))
            loss.backward()
            found.append([x.grad.asnumpy(), y.grad.asnumpy()])
        for got, want in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    finally:
        mx.npx.reset_np()


def test_graphs_that_read_all_stay() -> None:
    read = parse("graph g(%x: f32[2], %n: i32[3]) { %y = tanh(%x) : f32[2] return %y }")
    assert reading_all(read) is read  # nobody learns integers
    unread = parse("graph g(%x: f32[2], %v: f32[3,4]) { %y = tanh(%x) : f32[2] return %y }")
    made = reading_all(unread)
    assert made.node_users(made.find_input("v").id)
    assert [str(made.type_of(value)) for value in made.outputs] == ["f32[2]"]
