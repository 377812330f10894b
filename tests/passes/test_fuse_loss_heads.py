"""fuse-loss-heads: gradients of loss layers against MXNet's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.node import FUSED

mx = import_mxnet()
sym = mx.sym

#: Attributes, shape of the predictions, shape of the labels.
SOFTMAX: list[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ({}, (6, 5), (6,)),
    ({"grad_scale": 0.3}, (6, 5), (6,)),
    ({"normalization": "batch"}, (6, 5), (6,)),
    ({"use_ignore": True, "ignore_label": 2}, (6, 5), (6,)),
    ({"use_ignore": True, "ignore_label": 0, "grad_scale": 2.0}, (70, 33), (70,)),
    ({"smooth_alpha": 0.2}, (6, 5), (6,)),
    ({"smooth_alpha": 0.2, "use_ignore": True, "ignore_label": 1}, (6, 5), (6,)),
    ({}, (6, 5), (6, 5)),
    ({"grad_scale": 0.3}, (6, 5), (6, 5)),
    ({"preserve_shape": True}, (4, 3, 5), (4, 3)),
    ({"preserve_shape": True, "normalization": "batch"}, (4, 3, 5), (4, 3)),
    ({"multi_output": True}, (3, 5, 4, 6), (3, 4, 6)),
    ({"multi_output": True, "use_ignore": True, "ignore_label": 3}, (3, 5, 24), (3, 24)),
    ({"multi_output": True, "normalization": "batch", "grad_scale": 0.5}, (3, 5, 24), (3, 24)),
    ({"multi_output": True}, (3, 5), (3,)),
    ({"normalization": "valid"}, (6, 5), (6,)),
    ({"normalization": "valid", "use_ignore": True, "grad_scale": 3.0}, (6, 5), (6,)),
    ({"preserve_shape": True, "normalization": "valid", "ignore_label": 2}, (4, 3, 5), (4, 3)),
    # Of SSD and of region proposals.
    ({"multi_output": True, "normalization": "valid", "use_ignore": True}, (3, 5, 24), (3, 24)),
    ({"multi_output": True, "normalization": "valid", "use_ignore": True}, (2, 2, 6, 4), (2, 24)),
]
REGRESSIONS = [
    (name, attrs, shape, label)
    for name in ("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")
    for attrs, shape, label in [
        ({}, (6, 5), (6, 5)),
        ({"grad_scale": 0.3}, (6, 5), (6, 5)),
        ({}, (6, 1), (6,)),
        ({}, (6, 1), (6, 1)),
        ({}, (2, 3, 4), (2, 3, 4)),
    ]
]


def executors(loss: Any, numbers: Any, **shapes: Any) -> tuple[Any, Any]:
    """An optimized one and MXNet's, after a step on the same numbers."""
    found = []
    for optimize in (graphopt.optimize, lambda executor: executor):
        executor = loss.simple_bind(mx.cpu(), grad_req={"x": "write"}, **shapes)
        rng = np.random.default_rng(4)
        executor.arg_dict["x"][:] = rng.standard_normal(shapes["x"]) * 3
        executor.arg_dict["label"][:] = numbers
        executor = optimize(executor)
        executor.forward(is_train=True)
        executor.backward(mx.nd.full(executor.outputs[0].shape, 7.0))
        found.append(executor)
    return found[0], found[1]


def assert_same(fast: Any, plain: Any, rtol: float = 2e-6) -> None:
    assert "fuse-loss-heads: 1 kernel" in fast.explain()
    assert any(node.op == FUSED for node in fast.model.graph())
    for got, want in (
        (fast.outputs[0], plain.outputs[0]),
        (fast.grad_dict["x"], plain.grad_dict["x"]),
    ):
        np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=rtol, atol=1e-6)
    assert abs(plain.grad_dict["x"].asnumpy()).max() > 0


@pytest.mark.parametrize(("attrs", "shape", "label_shape"), SOFTMAX)
def test_softmax(attrs: dict[str, Any], shape: Any, label_shape: Any) -> None:
    rng = np.random.default_rng(5)
    if label_shape == shape:
        label = rng.uniform(size=shape)
    else:  # some are of no class, one is between two
        classes = shape[1] if attrs.get("multi_output") else shape[-1]
        label = rng.integers(-1, classes + 1, label_shape).astype("f")
        label.flat[0] = 1.7
    loss = sym.SoftmaxOutput(sym.var("x"), sym.var("label"), **attrs)
    assert_same(*executors(loss, label, x=shape, label=label_shape))


@pytest.mark.parametrize(("name", "attrs", "shape", "label_shape"), REGRESSIONS)
def test_regressions(name: str, attrs: dict[str, Any], shape: Any, label_shape: Any) -> None:
    label = np.random.default_rng(5).uniform(size=label_shape)
    loss = getattr(sym, name)(sym.var("x"), sym.var("label"), **attrs)
    assert_same(*executors(loss, label, x=shape, label=label_shape))


def test_predictions_that_are_the_labels_or_no_numbers() -> None:
    loss = sym.MAERegressionOutput(sym.var("x"), sym.var("label"))
    label = np.random.default_rng(4).standard_normal((6, 5)) * 3  # what the predictions are
    label[0], label[1], label[2, :2] = -10, 10, (np.nan, np.inf)
    assert_same(*executors(loss, label, x=(6, 5), label=(6, 5)))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dtypes(dtype: str) -> None:
    x = sym.Cast(sym.var("x"), dtype=dtype)
    label = sym.Cast(sym.var("label"), dtype=dtype)
    loss = sym.SoftmaxOutput(x, label, name="softmax")
    fast, plain = executors(loss, np.arange(6) % 5, x=(6, 5), label=(6,))
    tolerance = 1e-6 if dtype == "float64" else 2e-3
    got, want = fast.grad_dict["x"].asnumpy(), plain.grad_dict["x"].asnumpy()
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    assert ("SoftmaxOutput stays: it is float16" in fast.explain()) == (dtype == "float16")


@pytest.mark.parametrize(
    ("attrs", "shape", "label_shape", "reason"),
    [
        ({"out_grad": True}, (6, 5), (6,), "it has out_grad=True"),
        ({}, (6, 5, 2), (6, 5), "over several axes at once"),
        ({"multi_output": True}, (2, 5, 3), (2, 3), "too few rows lie side by side"),
        ({"multi_output": True}, (2, 5, 3, 2), (2, 6), "too few rows lie side by side"),
    ],
)
def test_refusals(attrs: dict[str, Any], shape: Any, label_shape: Any, reason: str) -> None:
    loss = sym.SoftmaxOutput(sym.var("x"), sym.var("label"), **attrs)
    fast, plain = executors(loss, np.ones(label_shape), x=shape, label=label_shape)
    assert re.search(f"SoftmaxOutput stays: .*{reason}", fast.explain())
    got, want = fast.grad_dict["x"].asnumpy(), plain.grad_dict["x"].asnumpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_no_label_is_valid() -> None:
    attrs = {"normalization": "valid", "use_ignore": True, "ignore_label": 1}
    loss = sym.SoftmaxOutput(sym.var("x"), sym.var("label"), **attrs)
    fast, plain = executors(loss, np.ones(6), x=(6, 5), label=(6,))
    assert (fast.grad_dict["x"].asnumpy() == 0).all()
    assert (plain.grad_dict["x"].asnumpy() == 0).all()


def test_other_readers() -> None:
    """The gradient is the same whatever reads the output; a head that is not read gives it too."""
    x = sym.FullyConnected(sym.var("x"), num_hidden=5, name="fc")
    loss = sym.SoftmaxOutput(x, sym.var("label"), name="softmax")
    group = sym.Group([sym.log(loss) * 3, sym.BlockGrad(x)])
    found = []
    for optimize in (graphopt.optimize, lambda executor: executor):
        executor = group.simple_bind(mx.cpu(), x=(8, 3), label=(8,))
        for array in executor.arg_arrays:
            array[:] = np.random.default_rng(array.size).uniform(size=array.shape)
        executor = optimize(executor)
        executor.forward(is_train=True)
        executor.backward([mx.nd.ones((8, 5)), mx.nd.ones((8, 5))])
        found.append(executor)
    fast, plain = found
    for name in ("x", "fc_weight", "fc_bias"):
        got, want = fast.grad_dict[name].asnumpy(), plain.grad_dict[name].asnumpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=name)
    assert "fuse-loss-heads: 1 kernel" in fast.explain()


def test_precise_leaves_sums_in_order() -> None:
    loss = sym.SoftmaxOutput(sym.var("x"), sym.var("label"))
    executor = loss.simple_bind(mx.cpu(), x=(6, 5), label=(6,))
    fast = graphopt.optimize(executor, precise=True)
    fast.forward(is_train=True)
    assert not any(node.op == FUSED for node in fast.model.graph())


READERS: dict[str, Any] = {
    "log of picked": lambda y, label: sym.log(sym.pick(sym.BlockGrad(y), label)),
    "argmax": lambda y, label: sym.argmax(y, axis=1),
    "another kernel": lambda y, label: sym.sum(sym.BlockGrad(y) * 2 + 1),
}
LAYERS: dict[str, Any] = {
    "softmax": sym.SoftmaxOutput,
    "linear": lambda x, label: sym.LinearRegressionOutput(x, sym.one_hot(label, 5)),
    "logistic": lambda x, label: sym.LogisticRegressionOutput(x, sym.one_hot(label, 5)),
}


#: What makes the predictions.
BEFORE: dict[str, Any] = {
    "a variable": lambda x: x,
    "pointwise": lambda x: sym.tanh(x * 2) + x,
    "rows": lambda x: sym.log_softmax(sym.sqrt(sym.abs(x) + 1)),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_that_are_only_looked_at_learn(layer: str, reader: str, before: str) -> None:
    x, label = sym.var("x"), sym.var("label")
    head = READERS[reader](LAYERS[layer](BEFORE[before](x), label), label)
    assert_same(*executors(head, [0, 4, 2, 1, 3, 3], x=(6, 5), label=(6,)), rtol=1e-4)
