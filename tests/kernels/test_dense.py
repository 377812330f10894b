"""Products of dense layers by whatever means this processor has, against float64."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

import graphopt
from graphopt.kernels.products import dense_means, packed
from tests.symbols import one_operator

#: Around the extents of blocks, of a depth's rest, of chunks of rows and of parts of the depth.
SIZES = [
    (1, 1, 1),
    (5, 3, 7),
    (32, 32, 32),
    (33, 59, 31),
    (64, 58, 97),
    (257, 769, 65),
    (300, 800, 32),
    (31, 1600, 513),
    (513, 100, 100),
    (1535, 40, 70),
]


def symbol(units: int, *, bias: bool, flatten: bool = False) -> Any:
    attrs = {"num_hidden": units, "no_bias": not bias, "flatten": flatten}
    return one_operator("graphopt_dense", "y", "xwb" if bias else "xw", attrs)


def arrays(size: tuple[int, int, int], *, bias: bool = True) -> dict[str, np.ndarray]:
    rows, depth, units = size
    rng = np.random.default_rng(sum(size))
    made = {
        "x": rng.standard_normal((rows, depth), np.float32),
        "w": rng.standard_normal((units, depth), np.float32) / np.float32(depth**0.5),
    }
    return made | ({"b": rng.standard_normal(units, np.float32)} if bias else {})


def compute(
    given: dict[str, np.ndarray], head: np.ndarray, requests: dict[str, str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The output, and the gradients; those that are added to begin with 1, all others with 7."""
    feeds = {name: mx.nd.array(array) for name, array in given.items()}
    grads = {
        name: mx.nd.full(array.shape, 1 if requests[name] == "add" else 7)
        for name, array in given.items()
    }
    made = symbol(len(given["w"]), bias="b" in given)
    executor = made.bind(mx.cpu(), feeds, args_grad=grads, grad_req=requests)
    output = executor.forward(is_train=True)[0]
    executor.backward([mx.nd.array(head)])
    return output.asnumpy(), {name: array.asnumpy() for name, array in grads.items()}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_as_float64(size: tuple[int, int, int], bias: bool) -> None:
    given = arrays(size, bias=bias)
    head = np.random.default_rng(1).standard_normal((size[0], size[2]), np.float32)
    x, w, g = (array.astype(float) for array in (given["x"], given["w"], head))
    want = {"x": g @ w, "w": g.T @ x, "b": g.sum(0)}
    for request in ("write", "add"):
        output, found = compute(given, head, dict.fromkeys(given, request))
        np.testing.assert_allclose(output, x @ w.T + given.get("b", 0.0), rtol=1e-5, atol=1e-5)
        for name, gradient in found.items():
            expected = want[name] + (request == "add")
            np.testing.assert_allclose(
                gradient, expected, rtol=1e-5, atol=2e-6 * size[0] ** 0.5 + 1e-5, err_msg=name
            )


@pytest.mark.parametrize("size", [(64, 1536, 128), (900, 1700, 70)], ids=str)
def test_parts_of_rows_that_differ_in_size(size: tuple[int, int, int]) -> None:
    """A depth is cut into parts; a row's largest number may be another in each."""
    rng = np.random.default_rng(2)
    given = arrays(size, bias=False)
    half = size[1] // 2
    given["x"] *= 255
    given["x"][:, half:] *= 10 ** rng.uniform(-6, 0, (size[0], 1)).astype(np.float32)
    head = rng.standard_normal((size[0], size[2]), np.float32)
    head *= 10 ** rng.uniform(-8, 4, (size[0], 1)).astype(np.float32)
    output, found = compute(given, head, dict.fromkeys(given, "write"))
    pairs = [(output, given["x"], given["w"].T), (found["x"], head, given["w"])]
    for one, left, right in [*pairs, (found["w"], head.T, given["x"])]:
        left, right = left.astype(float), right.astype(float)
        sizes = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=0)
        error = np.abs(one - left @ right)
        assert (error <= 3e-7 * sizes).all()
        # Pairs are as good as that, not as each sum's own terms.
        limit = 2e-6 if dense_means(mx) == "in pairs" else 1e-6
        assert (error <= limit * (np.abs(left) @ np.abs(right))).all()


@pytest.mark.parametrize("request_", ["write", "add"])
def test_rows_and_columns_of_zeros(request_: str) -> None:
    """As behind rectifiers: exactly zero is what has zeros alone in it."""
    rng = np.random.default_rng(3)
    given = arrays((70, 900, 80))
    head = rng.standard_normal((70, 80), np.float32)
    for array in (given["x"], given["w"], head):
        array[rng.random(len(array)) < 0.3] = 0
        array[:, rng.random(array.shape[1]) < 0.3] = 0
    output, found = compute(given, head, dict.fromkeys(given, request_))
    x, w, g = (array.astype(float) for array in (given["x"], given["w"], head))
    added = float(request_ == "add")
    for one, left, right in ((found["x"], g, w), (found["w"], g.T, x), (output, x, w.T)):
        offset = given["b"] if one is output else added
        np.testing.assert_allclose(one, left @ right + offset, rtol=1e-5, atol=3e-5)
        nothing = ~left.any(1)[:, None] | ~right.any(0)
        assert nothing.any()
        np.testing.assert_array_equal(one[nothing], np.broadcast_to(offset, one.shape)[nothing])


@pytest.mark.parametrize("size", [1e4, 1e9, 1e18])
@pytest.mark.parametrize("name", ["x", "w", "head"])
def test_a_lone_large_number_costs_no_other_rows_digits(name: str, size: float) -> None:
    """Nor those of its column where rows are zero there."""
    given = arrays((64, 96, 48), bias=False)
    head = np.random.default_rng(1).standard_normal((64, 48), np.float32)
    (given | {"head": head})[name][0, 5] = size
    given["x"][3:, 5] = head[3:, 0] = 0
    output, found = compute(given, head, dict.fromkeys(given, "write"))
    for one, left, right in (
        (output, given["x"], given["w"].T),
        (found["x"], head, given["w"]),
        (found["w"], head.T, given["x"]),
    ):
        want = mx.nd.dot(mx.nd.array(left), mx.nd.array(right)).asnumpy()
        rows = np.abs(left).max(1) < 100
        terms = (np.abs(left) @ np.abs(right))[rows]
        np.testing.assert_allclose(one[rows] / terms, want[rows] / terms, rtol=0, atol=3e-6)


@pytest.mark.parametrize("name", ["x", "w", "b"])
def test_gradients_that_nobody_wants_are_left_alone(name: str) -> None:
    given = arrays((40, 50, 60))
    head = np.ones((40, 60), np.float32)
    requests = {each: "write" if each == name else "null" for each in given}
    _, found = compute(given, head, requests)
    _, all_found = compute(given, head, dict.fromkeys(given, "write"))
    for each, gradient in found.items():
        expected = all_found[each] if each == name else np.full_like(gradient, 7)
        np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize("flatten", [True, False])
def test_shapes_are_those_of_mxnet(flatten: bool) -> None:
    rng = np.random.default_rng(0)
    x = mx.nd.array(rng.standard_normal((3, 4, 5)))
    w = mx.nd.array(rng.standard_normal((7, 20 if flatten else 5)))
    b = mx.nd.array(rng.standard_normal(7))
    expected = mx.nd.FullyConnected(x, w, b, num_hidden=7, flatten=flatten)
    made = symbol(7, bias=True, flatten=flatten)
    (found,) = made.bind(mx.cpu(), {"x": x, "w": w, "b": b}, grad_req="null").forward()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["x", "w"])
def test_what_is_infinite_or_no_number_stays_that(name: str) -> None:
    given = arrays((70, 900, 80))
    odd = given[name]
    odd[3, 5], odd[40, 800], odd[8, 1] = np.inf, np.nan, np.finfo(np.float32).max
    head = np.random.default_rng(1).standard_normal((70, 80), np.float32)
    output, found = compute(given, head, dict.fromkeys(given, "write"))
    x, w, g = (array.astype(float) for array in (given["x"], given["w"], head))
    with np.errstate(all="ignore"):
        pairs = [(output, x @ w.T + given["b"]), (found["x"], g @ w), (found["w"], g.T @ x)]
        for one, want in ((one, want.astype(np.float32)) for one, want in pairs):
            np.testing.assert_array_equal(np.isnan(one), np.isnan(want))
            is_infinite = np.isinf(want)
            np.testing.assert_array_equal(one[is_infinite], want[is_infinite])
            same = np.isfinite(want)
            np.testing.assert_allclose(one[same], want[same], rtol=1e-4, atol=1e-4)


def test_weights_that_cannot_be_packed_are_refused() -> None:
    if dense_means(mx) is None:
        pytest.skip("there are no such means here")
    weights = np.ones((70, 40), np.float32)
    assert packed(mx, weights, tiled=True) is not None
    weights[69, 39] = np.inf
    assert packed(mx, weights, tiled=True) is None
    assert packed(mx, weights) is not None


def test_weights_of_another_shape_are_refused_by_name() -> None:
    made = symbol(3, bias=False)
    with pytest.raises(mx.MXNetError, match="input 1 of node y has shape"):
        made.infer_shape(x=(2, 4), w=(3, 5))
    with mx.util.np_shape(), pytest.raises(mx.MXNetError, match="has no axis"):
        symbol(3, bias=False, flatten=True).infer_shape(x=())


@pytest.mark.parametrize("inside", [False, True])
def test_data_of_one_axis_are_samples_of_one_number(inside: bool) -> None:
    class Holds(mx.gluon.Block):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = mx.gluon.nn.Dense(4, activation="sigmoid", in_units=1)

        def forward(self, x):
            return self.layer(x)

    net = Holds() if inside else mx.gluon.nn.Dense(4, activation="sigmoid", in_units=1)
    net.initialize(mx.init.Normal(1))
    fast, x = graphopt.optimize(net), mx.nd.arange(6)
    weight = next(p for p in net.collect_params().values() if p.name.endswith("weight"))
    for _ in range(3):
        np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-5)
        found = []
        for called in (net, fast):
            with mx.autograd.record():
                loss = (called(x) ** 2).sum()
            loss.backward()
            found.append(weight.grad().asnumpy())
        np.testing.assert_allclose(*found, rtol=1e-5)
