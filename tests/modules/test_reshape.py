"""Executors for other shapes, whose arrays lie in the memory of those that they were made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
S = mx.sym


def filled(symbol: Any, *, is_optimized: bool, grad_req: str = "write", **shapes: Any) -> Any:
    executor = symbol.simple_bind(mx.cpu(), grad_req=grad_req, **shapes)
    for seed, array in enumerate(executor.arg_arrays):
        array[:] = np.random.default_rng(seed).standard_normal(array.shape)
    return graphopt.optimize(executor) if is_optimized else executor


def assert_all_near(found: list[Any]) -> None:
    """What the optimized one gave against what the plain one did."""
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_smaller_arrays_are_in_the_memory_of_the_larger_ones() -> None:
    """States are set once, for the largest batch."""
    x = S.tanh(S.var("data") + S.var("state"))
    symbol = S.FullyConnected(x, num_hidden=2, name="fc")
    found = []
    for is_optimized in (False, True):
        first = filled(symbol, is_optimized=is_optimized, data=(4, 3), state=(4, 3))
        second = first.reshape(data=(2, 3), state=(2, 3))
        third = second.reshape(data=(1, 3), state=(1, 3))
        seen = []
        for step in range(3):
            first.arg_dict["state"][:] = step
            for executor, rows in ((third, 1), (second, 2), (first, 4)):
                data = mx.nd.arange(rows * 3).reshape((rows, 3)) * step
                executor.forward(is_train=True, data=data)
                executor.backward(mx.nd.ones((rows, 2)))
                mx.nd.waitall()
                seen += [a.asnumpy() for a in (*first.arg_arrays, *first.grad_arrays)]
                seen += [a.asnumpy() for a in (*executor.outputs, *executor.grad_arrays)]
        found.append(seen)
    assert_all_near(found)


def test_smaller_gradients_are_added_to_what_is_there() -> None:
    symbol = S.broadcast_mul(S.var("data"), S.var("w", shape=(1,)))
    found = []
    for is_optimized in (False, True):
        executor = filled(symbol, is_optimized=is_optimized, grad_req="add", data=(4,))
        for size in (4, 2, 3):
            smaller = executor.reshape(data=(size,))
            smaller.forward(is_train=True)
            smaller.backward(mx.nd.arange(size) + 1)
        mx.nd.waitall()
        found.append([array.asnumpy() for array in executor.grad_arrays])
    assert_all_near(found)


@pytest.mark.parametrize("rows", [6, 2])
def test_parameters_of_another_shape(rows: int) -> None:
    """Of wider layers all is new; MXNet leaves what happens to be there."""
    symbol = S.FullyConnected(S.var("data"), num_hidden=3, no_bias=True, name="fc")
    found = []
    for is_optimized in (False, True):
        first = filled(symbol, is_optimized=is_optimized, data=(4, 5))
        wider = first.reshape(True, True, data=(rows, 7))
        assert not is_optimized or not wider.arg_dict["fc_weight"].asnumpy().any()
        narrower = first.reshape(True, True, data=(rows, 3))
        seen = [narrower.arg_dict["fc_weight"].asnumpy()]
        for factor in (1, 2):
            first.arg_dict["fc_weight"][:] *= factor
            for executor, width in ((wider, 7), (narrower, 3)):
                if executor is wider:
                    executor.arg_dict["fc_weight"][:] = factor
                executor.forward(is_train=True, data=mx.nd.ones((rows, width)))
                executor.backward(mx.nd.ones((rows, 3)))
                seen += [executor.outputs[0].asnumpy(), executor.grad_arrays[1].asnumpy()]
                seen.append(executor.forward(is_train=False)[0].asnumpy())
        found.append(seen)
    assert_all_near(found)


def test_reshaping_is_nothing_to_autograd() -> None:
    symbol = S.FullyConnected(S.var("data"), num_hidden=3, name="fc")
    found = []
    for is_optimized in (False, True):
        first = filled(symbol, is_optimized=is_optimized, data=(4, 5))
        first.arg_dict["data"].attach_grad()
        other = mx.nd.ones((2, 5))
        other.attach_grad()
        with mx.autograd.record():
            smaller = first.reshape(data=(2, 5))
            smaller.forward(is_train=True)
            smaller.backward(mx.nd.ones((2, 3)))
            loss = (smaller.arg_dict["data"] * other).sum()
        loss.backward()
        found.append([a.asnumpy() for a in (*smaller.outputs, *smaller.grad_arrays)])
        assert not first.arg_dict["data"].grad.asnumpy().any()
    assert_all_near(found)


def test_a_module_that_is_given_no_labels_reads_those_before() -> None:
    """As in MXNet: batches are smaller, and labels stay."""
    scores = S.FullyConnected(S.var("data"), num_hidden=1, name="fc")
    error = S.reshape(scores, (-1,)) - S.var("softmax_label")
    symbol = S.Group([S.MakeLoss(S.square(error)), S.BlockGrad(scores)])
    found = []
    for is_optimized in (False, True):
        module = mx.mod.Module(symbol)
        module = graphopt.optimize(module) if is_optimized else module
        module.bind([("data", (4, 4))], [("softmax_label", (4,))])
        module.init_params(mx.init.One())
        module.forward(mx.io.DataBatch([mx.nd.ones((4, 4))], [mx.nd.arange(4)]), is_train=True)
        module.reshape([("data", (2, 4))], [("softmax_label", (2,))])
        module.forward(mx.io.DataBatch([mx.nd.ones((2, 4))], []), is_train=False)
        found.append([output.asnumpy() for output in module.get_outputs()])
    assert_all_near(found)
    assert found[0][0].tolist() == [16, 9]


@pytest.mark.parametrize("memory", [None, "1GB"])
def test_graphs_of_ever_other_shapes_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, memory: str | None
) -> None:
    monkeypatch.setattr("graphopt.nn.entries.MAX_SIGNATURES", 2)
    symbol = S.FullyConnected(S.tanh(S.var("data")), num_hidden=2, name="fc")
    found = []
    for is_optimized in (False, True):
        first = executor = filled(symbol, is_optimized=False, data=(8, 3))
        if is_optimized:
            first = executor = graphopt.optimize(executor, memory=memory)
        seen = []
        for rows in (8, 7, 6, 5, 4, 3):
            executor = executor.reshape(data=(rows, 3))
            for each in (executor, first):  # which goes on with what was forgotten
                each.forward(is_train=True)
                each.backward(mx.nd.ones(each.outputs[0].shape))
                seen += [a.asnumpy() for a in (*each.outputs, *each.grad_arrays)]
        found.append(seen)
    assert_all_near(found)
    assert len(first.model.receipts()) == 2
