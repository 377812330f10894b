"""What hybridized nets under ``npx.set_np()`` return: arrays of ``mx.np``, promoted as there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.tiers import one_of

mx = import_mxnet()


@pytest.fixture(autouse=True)
def _as_numpy() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def results(function: Any, data: Any, *, optimized: bool) -> list[Any]:
    """Of two calls."""

    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return function(F, x)

    net = Net()
    net.hybridize()
    net = graphopt.optimize(net) if optimized else net
    found: list[Any] = []
    for _ in range(2):
        made = net(data)
        found += made if isinstance(made, list) else [made]
    return found


def check(function: Any, data: Any) -> None:
    want, found = (results(function, data, optimized=o) for o in (False, True))
    for one, other in zip(want, found, strict=True):
        assert type(other) is type(one) is mx.np.ndarray
        assert other.dtype == one.dtype
        np.testing.assert_array_equal(other.asnumpy(), one.asnumpy())


LIMITS: dict[str, Callable[[Any, Any], Any]] = {
    "maximum": lambda F, x: F.np.maximum(x, 0.0),
    "minimum of maximum": lambda F, x: F.np.minimum(F.np.maximum(x, 0.5), 2.5),
    "maximum of maximum": lambda F, x: F.np.maximum(F.np.maximum(x, 0.5), 1.5),
    "clip of maximum": lambda F, x: F.np.clip(F.np.maximum(x, 0.5), 0, 2.5),
}


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float32"])
@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_integers_that_are_floats(name: str, dtype: str) -> None:
    check(LIMITS[name], mx.np.array([0, 1, 3], dtype=dtype))


FILLED: dict[str, Callable[[Any, Any], Any]] = {
    "zeros": lambda F, x: F.np.zeros_like(x),
    "sum": lambda F, x: F.np.ones_like(x) + 1,
    "two": lambda F, x: [F.np.zeros_like(x), F.np.ones_like(x)],
}


@pytest.mark.parametrize("name", FILLED)
def test_results_that_no_input_reaches(name: str) -> None:
    check(FILLED[name], mx.np.ones((4,)))


MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "as numbers": lambda F, m: F.np.transpose(m * 1.0, (0, 2, 1)),
    "chosen by": lambda F, m: F.np.transpose(F.np.where(m, 0.0, -1e9), (0, 2, 1)),
    "of other axes": lambda F, m: (m * F.np.ones((2, 1, 3))).swapaxes(1, 2),
    "between two transposes": lambda F, m: F.np.transpose(
        F.np.transpose(F.np.ones((2, 3, 4)), (0, 2, 1)) * m.astype("float32"), (0, 2, 1)
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_below_a_transpose(name: str) -> None:
    """A transpose is not moved up to a bool array, which MXNet does not transpose."""
    mask = np.random.RandomState(0).rand(2, 4, 3) > 0.5
    check(MASKS[name], mx.np.array(mask, dtype="bool"))


def _twice(F: Any, x: Any) -> Any:
    return F.np.hstack([x, x]) * 2


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "of sums": lambda F, x: F.np.concatenate([F.np.max(x), F.np.mean(x)], axis=None),
    "behind a sum": lambda F, x: F.np.append(F.np.max(x), x),
    "beside each other": lambda F, x: [
        _twice(F, F.np.max(x)),
        F.np.reshape(F.np.max(x), (1, -1)),
    ],
    "in depth": lambda F, x: F.np.dstack([F.np.max(x), F.np.min(x)]),
}


@pytest.mark.parametrize("name", JOINS)
def test_joins_of_what_has_no_axes(name: str) -> None:
    """MXNet writes wrong shapes where those of what is joined stood, which fused kernels refuse."""
    check(JOINS[name], mx.np.array([[1.5, -2.0], [3.0, 0.5]]))


@pytest.mark.parametrize("shape", [(), (2, 0), (2, 3)])
def test_what_was_joined_keeps_its_shape(shape: tuple[int, ...]) -> None:
    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            twice = x * 2
            return F.np.concatenate([twice, x], axis=None), twice, F.np.hstack([x, x])

    x = mx.np.ones(shape)
    fast = graphopt.optimize(Net())
    for _ in range(3):
        for found, wanted in zip(fast(x), Net()(x), strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_array_equal(found.asnumpy(), wanted.asnumpy())


def test_a_joined_input_without_axes_that_is_read_elsewhere() -> None:
    """MXNet cannot run it hybridized."""

    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            row = F.np.reshape(x, (1, -1))
            return F.np.where(row, row, _twice(F, x))

    x, fast = mx.np.array(2.5), graphopt.optimize(Net())
    wanted = Net()(x).asnumpy()
    for _ in range(3):
        np.testing.assert_allclose(fast(x).asnumpy(), wanted, atol=1e-6)


class _Kept(mx.gluon.HybridBlock):
    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.function(F, x)


NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "subtracted from": lambda F, x: 1 - x,
    "negative": lambda F, x: -x,
    "half": lambda F, x: x + 0.5,
    "compared": lambda F, x: x >= 0.5,
    "times": lambda F, x: x * 1.5,
    "by name": lambda F, x: F.np.multiply(2.5, x),
    "counted": lambda F, x: (x > 0).sum() * 2.5,
    "divided": lambda F, x: x / 2,
    "promoted": lambda F, x: F.np.ones((1, 3)) * (1 - x),
}


@pytest.mark.parametrize(
    ("name", "dtype", "is_hybridized", "is_child"),
    one_of(
        5, itertools.product(NUMBERS, ["int32", "bool", "float32"], [False, True], [False, True])
    ),
)
def test_numbers_beside_integers(
    name: str, dtype: str, is_hybridized: bool, is_child: bool
) -> None:
    """Arrays do not tell operators whether a number is whole; Symbols of hybridized nets do."""

    class Parent(mx.gluon.Block):
        def __init__(self, child: Any) -> None:
            super().__init__()
            self.child = child

        def forward(self, x: Any) -> Any:
            return self.child(x)

    found = []
    for is_optimized in (False, True):
        net: Any = _Kept(NUMBERS[name])
        if is_hybridized:
            net.hybridize()
        net = Parent(net) if is_child else net
        net = graphopt.optimize(net, record=False) if is_optimized else net
        found += [net(mx.np.array([[3, 0, 1]], dtype=dtype)) for _ in range(2)]
    for one in found[1:]:
        assert one.dtype == found[0].dtype
        np.testing.assert_allclose(one.asnumpy(), found[0].asnumpy(), rtol=1e-6, atol=0)


def test_numbers_in_a_hybridized_child_stay_as_there() -> None:
    class Outer(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _Kept(NUMBERS["half"])
            self.inner.hybridize()

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.inner(x), x + 0.5

    x = mx.np.array([1, 2], dtype="int32")
    for found, wanted in zip(graphopt.optimize(Outer())(x), Outer()(x), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found.asnumpy(), wanted.asnumpy())


def test_a_stack_of_unlike_arrays_is_an_error() -> None:
    class Stacked(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
            return F.np.stack([x * 2, y * 2])

    net = graphopt.optimize(Stacked())
    for _ in range(2):
        with pytest.raises(mx.MXNetError):
            net(mx.np.ones(3), mx.np.ones(2)).asnumpy()
