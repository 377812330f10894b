"""Arrays laid flat to be joined, of which MXNet infers wrong shapes, beside other readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


@pytest.fixture(autouse=True)
def _in_numpy() -> Iterator[None]:
    with mx.util.np_shape(True), mx.util.np_array(True):
        yield


class Joined(mx.gluon.HybridBlock):
    def __init__(self, function: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        return self.function(F, F.np.tanh(x), y)


def flat(F: Any, *arrays: Any) -> Any:
    return F.np.concatenate(list(arrays), axis=None)


JOINS = {
    "tiled": lambda F, x, y: flat(F, x, y) + F.np.tile(x.reshape(-1), 2),
    "flipped": lambda F, x, y: flat(F, x, y)[:12] + F.np.flip(x.reshape(-1), 0),
    "rows": lambda F, x, y: flat(F, x, y).sum() * F.npx.softmax(x),
    "means": lambda F, x, y: flat(F, x, y).sum() * x.mean(0),
    "centered": lambda F, x, y: (x - x.mean(-1, keepdims=True)) * flat(F, x, y).sum(),
    "returned": lambda F, x, y: [flat(F, x, y), x],
    "inserted": lambda F, x, y: [F.np.insert(x, 1, 2.0), x * y],
}


@pytest.mark.parametrize("name", JOINS)
def test_readers_beside_keep_their_shapes(name: str) -> None:
    rng = np.random.default_rng(1)
    given = [rng.standard_normal((3, 4)).astype("float32") for _ in range(2)]

    def found(net: Any, *, learns: bool) -> list[Any]:
        arrays = [mx.np.array(a) for a in given]
        for array in arrays:
            array.attach_grad()
        with mx.autograd.record() if learns else mx.autograd.pause():
            made = net(*arrays)
            made = made if isinstance(made, list) else [made]
            loss = sum((part * part).sum() for part in made)
        if learns:
            loss.backward()
        return [a.asnumpy() for a in (*made, *(a.grad for a in arrays if learns))]

    fast = graphopt.optimize(Joined(JOINS[name]))
    for learns in (False, False, *[True] * 2 * (name != "inserted")):
        want = found(Joined(JOINS[name]), learns=learns)
        for got, expected in zip(found(fast, learns=learns), want, strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
