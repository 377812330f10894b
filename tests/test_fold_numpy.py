"""graphopt.fold on arrays of ``mx.np``, against the same calls made by plain MXNet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.fold import Fold

mx = import_mxnet()


@pytest.fixture(autouse=True)
def _as_numpy() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def array(*shape: int, dtype: str = "float32") -> Any:
    return mx.np.array(np.random.default_rng(0).normal(size=shape), dtype=dtype)


def double(x: Any) -> Any:
    return x * 2


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_arrays_are_joined_and_learn(axis: int, debug: bool) -> None:
    given, grads = [array(1, 3), array(2, 3) if axis == 0 else array(1, 2)], []
    for each in given:
        each.attach_grad()
    for is_plain in (True, False):
        fold = Fold(debug=debug)
        with mx.autograd.record():
            if is_plain:
                found = mx.np.concatenate([double(mx.np.tanh(x)) for x in given], axis=axis)
                expected = found
            else:
                nodes = [fold.record(axis, mx.np.tanh, x) for x in given]
                (found,) = fold([[fold.record(axis, double, node) for node in nodes]])
            loss = (found * found).sum()
        loss.backward()
        grads.append([each.grad.asnumpy().copy() for each in given])
    assert type(found) is mx.np.ndarray
    np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-6, atol=1e-6)
    for one, other in zip(*grads, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("other", "text"),
    [
        ("shape", r"of mx.np float32\[1, 3\] and node 1 .* of mx.np float32\[1, 4\] cannot be"),
        ("dtype", r"of mx.np float32\[1, 3\] and node 1 .* of mx.np float64\[1, 3\] cannot be"),
        ("kind", r"of mx.np float32\[1, 3\] and node 1 .* of float32\[1, 3\] cannot be joined"),
    ],
)
def test_what_cannot_be_joined_is_named(other: str, text: str, debug: bool) -> None:
    second = {
        "shape": array(1, 4),
        "dtype": array(1, 3, dtype="float64"),
        "kind": array(1, 3).as_nd_ndarray(),
    }[other]
    fold = Fold(debug=debug)
    with pytest.raises(InputError, match=text):
        fold([[fold.record(0, double, x) for x in (array(1, 3), second)]])
