"""Gradients that executors write, and those that MXNet has none of."""

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


def shaped_like(name: str) -> Any:
    return S.var(name, shape=(2, 3))


#: Expressions of which passes leave no reader of ``v``.
UNREAD = {
    "ones": lambda: shaped_like("w") * S.ones_like(shaped_like("v")),
    "reshape": lambda: S.reshape_like(shaped_like("w"), shaped_like("v")) * 2,
    "half of a table": lambda: (
        S.slice_axis(S.concat(shaped_like("w"), shaped_like("v"), dim=0), axis=0, begin=0, end=2)
        * 3
    ),
    "nothing is left": lambda: S.zeros_like(shaped_like("v")) * 3 + shaped_like("x"),
}


@pytest.mark.parametrize("calls", [1, 12])
@pytest.mark.parametrize("make", UNREAD.values(), ids=UNREAD)
def test_arguments_that_passes_leave_no_reader_of(make: Callable[[], Any], calls: int) -> None:
    found = []
    for wrap in BOTH:
        symbol = make()
        names = symbol.list_arguments()
        arrays = {name: mx.nd.ones((2, 3)) for name in names}
        gradients = {name: mx.nd.full((2, 3), 5) for name in names if name != "x"}
        executor = wrap(symbol.bind(mx.cpu(), arrays, args_grad=gradients))
        for _ in range(calls):
            for gradient in gradients.values():
                gradient[:] = 5
            executor.forward(is_train=True)
            executor.backward(mx.nd.ones((2, 3)))
        found.append({name: a.asnumpy() for name, a in gradients.items()})
    for name, wanted in found[0].items():
        np.testing.assert_allclose(found[1][name], wanted, rtol=1e-5)


def test_buckets_that_read_a_part_of_what_others_learn() -> None:
    w, v = (S.var(name, shape=(2, 3), init=mx.init.One()) for name in "wv")

    def bucket(key: int) -> tuple[Any, tuple[str], tuple[str]]:
        table = S.slice_axis(S.concat(w, v, dim=0), axis=0, begin=0, end=key)
        x = S.Embedding(S.var("data"), table, input_dim=key, output_dim=3, name="e")
        return S.LinearRegressionOutput(x, S.var("label")), ("data",), ("label",)

    found = []
    for wrap in BOTH:
        module = wrap(mx.mod.BucketingModule(bucket, default_bucket_key=4))
        module.bind([("data", (4,))], [("label", (4, 3))])
        module.init_params(mx.init.One())
        module.init_optimizer(optimizer_params={"learning_rate": 1.0})
        for key in (4, 2, 2, 2):
            batch = mx.io.DataBatch(
                [mx.nd.arange(4) % key],
                [mx.nd.zeros((4, 3))],
                bucket_key=key,
                provide_data=[("data", (4,))],
                provide_label=[("label", (4, 3))],
            )
            module.forward_backward(batch)
            module.update()
        found.append({name: a.asnumpy() for name, a in module.get_params()[0].items()})
    for name, wanted in found[0].items():
        np.testing.assert_allclose(found[1][name], wanted, rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_last_step_of_whole_sequences(axis: int) -> None:
    """MXNet's operator for it reads memory that only its executor keeps."""
    symbol = S.SequenceLast(S.tanh(S.var("x", shape=(4, 2, 3))), axis=axis)
    found = []
    for wrap in BOTH:
        executor = wrap(symbol.simple_bind(mx.cpu()))
        executor.arg_arrays[0][:] = mx.nd.arange(24).reshape((4, 2, 3)) / 24
        for _ in range(4):
            output = executor.forward(is_train=True)[0]
            executor.backward(mx.nd.ones(output.shape))
        found.append([output.asnumpy(), executor.grad_arrays[0].asnumpy()])
    for got, wanted in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_training_forward_of_what_has_no_gradient() -> None:
    """As for Monte-Carlo dropout."""
    found = []
    for wrap in BOTH:
        x = S.Dropout(S.var("x"), p=0.0)
        symbol = S.argmax_channel(S.FullyConnected(x, num_hidden=3, name="fc"))
        executor = wrap(symbol.simple_bind(mx.cpu(), grad_req="null", x=(4, 5)))
        for name, array in executor.arg_dict.items():
            array[:] = mx.nd.array(np.random.default_rng(len(name)).normal(size=array.shape))
        found.append([executor.forward(is_train=True)[0].asnumpy() for _ in range(3)])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_arguments_of_integers(dtype: str) -> None:
    """MXNet hands gradients through casts to them, truncated."""
    found = []
    for wrap in BOTH:
        cast = S.Cast(S.var("x", dtype=dtype), dtype="float32")
        executor = wrap((cast * S.var("w", shape=(3,)) * 0.5).simple_bind(mx.cpu(), x=(3,)))
        for array in executor.arg_arrays:
            array[:] = mx.nd.array([1, 2, 3], dtype=array.dtype)
        for _ in range(3):
            executor.forward(is_train=True)
            executor.backward(mx.nd.array([4, 5, 7]))
        found.append([array.asnumpy() for array in executor.grad_arrays])
    for plain, fast in zip(*found, strict=True):
        assert plain.any()
        np.testing.assert_allclose(fast, plain, rtol=1e-6, atol=1e-6)


def test_pictures_of_bytes_in_a_module() -> None:
    found = []
    for wrap in BOTH:
        pixels = S.Cast(S.var("data", dtype="uint8"), dtype="float32")
        logits = S.FullyConnected(pixels * 20, num_hidden=3, name="fc")
        module = wrap(mx.mod.Module(S.SoftmaxOutput(logits, name="softmax")))
        shapes = [mx.io.DataDesc("data", (2, 4), "uint8")], [("softmax_label", (2,))]
        module.bind(*shapes, inputs_need_grad=True)
        weight = mx.nd.array(np.linspace(-3, 3, 12).reshape(3, 4) ** 3)
        module.init_params(arg_params={"fc_weight": weight, "fc_bias": mx.nd.zeros((3,))})
        data = mx.nd.array([[1, 2, 3, 4], [8, 7, 6, 5]], dtype="uint8")
        module.forward(mx.io.DataBatch([data], [mx.nd.array([1, 1])]), is_train=True)
        module.backward()
        found.append(module.get_input_grads()[0].asnumpy())
    assert found[0].any()
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1)
