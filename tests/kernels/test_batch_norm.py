"""BatchNorm with the sum and the function behind it, against float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from graphopt.backend.invoke import invoke
from tests.symbols import one_operator

Arrays = dict[str, np.ndarray]

EPS, MOMENTUM = 1e-3, 0.9

#: Pixels around vectors of 4, 8 and 16, and around parts of 256 of these.
SHAPES = [(1, 1, 1, 1), (2, 3, 1, 7), (3, 5, 4, 4), (2, 16, 9, 5), (5, 1, 67, 63), (1, 8, 33, 17)]

FUNCTIONS: list[dict[str, Any]] = [
    {"function": "none"},
    {"function": "relu"},
    {"function": "relu", "residual": True},
    {"function": "leaky", "slope": 0.1},
    {"function": "clip", "a_min": -0.5, "a_max": 0.75},
    {"function": "swish"},
    {"function": "hard_swish"},
]


@dataclass(frozen=True)
class Layer:
    """Attributes, and how it is called."""

    attrs: dict[str, Any]
    requests: dict[str, str] = field(default_factory=dict)
    training: bool = True

    @property
    def inputs(self) -> list[str]:
        names = ["x", "gamma", "beta", "mean", "variance"]
        return names + ["residual"] * bool(self.attrs.get("residual"))

    @property
    def fixes_gamma(self) -> bool:
        return bool(self.attrs.get("fix_gamma", True))

    @property
    def is_own(self) -> bool:
        return self.training and not self.attrs.get("use_global_stats")


def arrays(layer: Layer, shape: tuple[int, ...], offset: float = 0.0) -> Arrays:
    rng = np.random.default_rng(sum(shape))
    found = {name: rng.standard_normal(shape[1], np.float32) for name in layer.inputs}
    found["x"] = rng.standard_normal(shape, np.float32) * 2 + np.float32(offset)
    found["variance"] = found["variance"] ** 2
    if "residual" in found:
        found["residual"] = rng.standard_normal(shape, np.float32)
    return found


def compute(layer: Layer, given: Arrays, head: np.ndarray) -> tuple[np.ndarray, Arrays, Arrays]:
    """The output, the gradients, which begin with 3, and what inputs are afterwards."""
    symbol = one_operator("graphopt_batch_norm", "y", layer.inputs, {"eps": EPS, **layer.attrs})
    feeds = {name: mx.nd.array(array) for name, array in given.items()}
    states = symbol.list_auxiliary_states()
    assert states == ["mean", "variance"]
    learned = [name for name in feeds if name not in states]
    grads = {name: mx.nd.full(given[name].shape, 3) for name in learned}
    requests = {name: layer.requests.get(name, "write") for name in learned}
    executor = symbol.bind(
        mx.cpu(),
        {name: feeds[name] for name in learned},
        args_grad=grads,
        grad_req=requests,
        aux_states={name: feeds[name] for name in states},
    )
    output = executor.forward(is_train=layer.training)[0].asnumpy()
    executor.backward([mx.nd.array(head)], is_train=layer.training)
    mx.nd.waitall()  # MXNet's executors take states for what is read only
    after = {name: array.asnumpy() for name, array in feeds.items()}
    return output, {name: array.asnumpy() for name, array in grads.items()}, after


def expected(layer: Layer, given: Arrays, head: np.ndarray) -> tuple[np.ndarray, Arrays, Arrays]:
    """The same in float64, by the formulas; numbers at a kink are told apart as float32."""
    wide = {name: array.astype(float) for name, array in given.items()}
    x, g = wide["x"], head.astype(float)
    axes, over = (0, 2, 3), (None, slice(None), None, None)
    mean, variance = x.mean(axes), x.var(axes)
    after = dict(wide)
    if layer.is_own:
        after["mean"] = MOMENTUM * wide["mean"] + (1 - MOMENTUM) * mean
        after["variance"] = MOMENTUM * wide["variance"] + (1 - MOMENTUM) * variance
    else:
        mean, variance = wide["mean"], wide["variance"]
    gamma = np.ones_like(mean) if layer.fixes_gamma else wide["gamma"]
    after["gamma"] = gamma if layer.fixes_gamma else wide["gamma"]
    inverse = 1 / np.sqrt(variance + EPS)
    even = (x - mean[over]) * inverse[over]
    z = even * gamma[over] + wide["beta"][over] + wide.get("residual", 0.0)
    y, slope = function(layer.attrs, z)
    g = g * slope
    grads = {"gamma": (g * even).sum(axes), "beta": g.sum(axes), "residual": g}
    if layer.is_own:
        g = g - g.mean(axes)[over] - even * (g * even).mean(axes)[over]
    grads["x"] = g * (gamma * inverse)[over]
    if layer.fixes_gamma:
        grads["gamma"] = np.zeros_like(gamma)
    return y, {name: grads[name] for name in given if name in grads}, after


def function(attrs: dict[str, Any], z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and slopes."""
    kind = attrs["function"]
    if kind == "relu":
        return np.maximum(z, 0), (z > 0) * 1.0
    if kind == "leaky":
        return np.where(z > 0, z, attrs["slope"] * z), np.where(z > 0, 1.0, attrs["slope"])
    if kind == "clip":
        low, high = attrs["a_min"], attrs["a_max"]
        return np.clip(z, low, high), ((z >= low) & (z <= high)) * 1.0
    if kind == "swish":
        gate = 0.5 + 0.5 * np.tanh(z / 2)
        return z * gate, gate * (1 + z * (1 - gate))
    if kind == "hard_swish":
        inside = (z >= -3) & (z <= 3)
        return z * np.clip(z + 3, 0, 6) / 6, np.where(inside, z / 3 + 0.5, z > 3)
    return z, np.ones_like(z)


def check(layer: Layer, shape: tuple[int, ...], offset: float = 0.0, rtol: float = 1e-5) -> None:
    given = arrays(layer, shape, offset)
    head = np.random.default_rng(1).standard_normal(shape, np.float32)
    found, wanted = compute(layer, given, head), expected(layer, given, head)
    np.testing.assert_allclose(found[0], wanted[0], rtol, rtol)
    pixels = shape[0] * shape[2] * shape[3]
    for name, want in wanted[1].items():
        request = layer.requests.get(name, "write")
        sure = want + 3 * (request == "add") if request != "null" else np.full_like(want, 3)
        np.testing.assert_allclose(
            found[1][name], sure, rtol, rtol * (pixels**0.5 + 3), err_msg=name
        )
    for name, want in wanted[2].items():
        np.testing.assert_allclose(found[2][name], want, rtol, rtol, err_msg=name)


@pytest.mark.parametrize("attrs", FUNCTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_as_float64(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    # One number has no variance: its distance from the mean is nothing, or rounding.
    check(Layer({"fix_gamma": False, **attrs}), shape)


@pytest.mark.parametrize("attrs", FUNCTIONS, ids=str)
@pytest.mark.parametrize(
    "more",
    [
        Layer({}),
        Layer({"use_global_stats": True, "fix_gamma": False}),
        Layer({"fix_gamma": False}, training=False),
        Layer({"fix_gamma": False}, {"x": "add", "gamma": "add", "beta": "add", "residual": "add"}),
        Layer({"fix_gamma": False}, {"x": "null", "gamma": "null", "residual": "null"}),
    ],
    ids=str,
)
def test_ways_to_call_it(more: Layer, attrs: dict[str, Any]) -> None:
    layer = Layer({**more.attrs, **attrs}, more.requests, more.training)
    check(layer, (3, 4, 5, 6))


def test_a_large_mean_leaves_the_variance() -> None:
    """A sum of squares less the square of a sum would leave nothing of it."""
    layer = Layer({"fix_gamma": False, "function": "none"})
    shape = (4, 2, 40, 40)
    given, head = arrays(layer, shape, 1000.0), np.ones(shape, np.float32)
    found, wanted = compute(layer, given, head)[0], expected(layer, given, head)[0]
    # The data have seven digits, the mean takes three of them.
    np.testing.assert_allclose(found, wanted, 1e-3, 1e-3)


@pytest.mark.parametrize("kind", ["relu", "swish", "hard_swish"])
def test_numbers_that_are_none(kind: str) -> None:
    layer = Layer({"fix_gamma": False, "function": kind})
    given = arrays(layer, (2, 3, 4, 5))
    given["x"][1, 1, 2, 3] = np.nan
    found = compute(layer, given, np.ones((2, 3, 4, 5), np.float32))[0]
    assert np.isnan(found[:, 1]).all()
    assert np.isfinite(found[:, [0, 2]]).all()


def test_swish_of_large_numbers() -> None:
    """Where exp would overflow."""
    layer = Layer({"fix_gamma": False, "function": "swish"})
    given = arrays(layer, (2, 3, 8, 8))
    given["gamma"][:] = [50, 200, -1e4]
    head = np.ones((2, 3, 8, 8), np.float32)
    found, wanted = compute(layer, given, head), expected(layer, given, head)
    assert np.abs(wanted[0]).max() > 1e3
    np.testing.assert_allclose(found[0], wanted[0], 1e-5, 1e-5)
    np.testing.assert_allclose(found[1]["beta"], wanted[1]["beta"], 1e-4)


def test_no_images() -> None:
    layer = Layer({"fix_gamma": False, "function": "relu"})
    shape = (0, 3, 4, 5)
    with mx.util.np_shape(True):
        x = mx.nd.zeros(shape)
        numbers = [mx.nd.ones(3) for _ in range(4)]

        assert invoke("graphopt_batch_norm", [x, *numbers], layer.attrs)[0].shape == shape


@pytest.mark.parametrize(
    ("attrs", "shapes", "message"),
    [
        ({"function": "sine"}, {}, "has no function 'sine'"),
        ({}, {"x": (2, 3)}, "are no images"),
        ({}, {"gamma": (4,)}, "input 1 of node y has shape"),
        ({"residual": True}, {"residual": (2, 3, 4, 4)}, "input 5 of node y has shape"),
    ],
)
def test_refusals(attrs: dict[str, Any], shapes: dict[str, Any], message: str) -> None:
    layer = Layer(attrs)
    symbol = one_operator("graphopt_batch_norm", "y", layer.inputs, attrs)

    def run() -> None:
        executor = symbol.simple_bind(mx.cpu(), **{"x": (2, 3, 4, 5), **shapes})
        executor.forward(is_train=True)[0].wait_to_read()

    with pytest.raises((mx.MXNetError, RuntimeError), match=message):
        run()
