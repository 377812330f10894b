"""Values that Python reads, writes that it makes, and methods of arrays while it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.recording.nets import array, assert_same, block, programs, values
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn


def test_reading_a_value_runs_what_there_is() -> None:
    def forward(self, x):
        y = self.dense(x)
        return y * 2 if float(y.sum().asscalar()) > 0 else y * -3

    optimized = assert_same(block(forward, dense=nn.Dense(4)), array(3, 4))
    assert programs(optimized).runs == 4


def test_a_loop_until_a_value_is_small() -> None:
    def forward(self, x):
        steps = 0
        while x.norm() > 1:
            x = x / 2
            steps += 1
        return x, mx.nd.array([steps])

    assert_same(block(forward), array(3, 4) * 10)


def test_writes_are_seen() -> None:
    def forward(self, x):
        y = x * 2
        y[:, 0] = 5
        z = y + 1
        y += 10
        y[1] = z[0]
        return y, z

    assert_same(block(forward), array(3, 4))


def test_writes_are_seen_through_what_is_detached() -> None:
    def forward(self, x):
        y = x * 2
        kept = y.detach()
        kept[:, 0] = 7
        kept += 1
        return y, kept, y.detach() * 3

    assert_same(block(forward), array(3, 4))


def test_writes_into_what_is_made_without_data() -> None:
    """It is computed once for all calls, which must not see each other's writes."""

    def forward(self, x):
        y = self.act(x)
        mask, scale = mx.nd.ones(x.shape), self.act.alpha.data() * 2
        mask *= x
        scale[0] += 1
        return y * mask + scale

    net, x = block(forward, act=nn.PReLU()), array(3, 4)
    wanted = net(x).asnumpy()
    for record in (True, None):
        optimized = graphopt.optimize(net, record=record)
        for _ in range(12):
            np.testing.assert_allclose(optimized(x).asnumpy(), wanted, rtol=1e-5)


def test_reshapes_that_do_not_fit_are_refused() -> None:
    """Once they are recorded, MXNet's operator would read past the end."""

    def forward(self, x):
        with pytest.raises(ValueError, match="Cannot reshape"):
            (x * 1.0).reshape((0, 1, 2, 2))
        with pytest.raises(mx.MXNetError):
            (x * 1.0).reshape((0, 1, 20, 20))
        return x * 2

    for record in (True, None):
        optimized = graphopt.optimize(block(forward), record=record)
        for _ in range(3):
            doubled = optimized(array(512, 50))
            np.testing.assert_allclose(doubled.asnumpy(), array(512, 50).asnumpy() * 2)


def test_writes_are_seen_through_views() -> None:
    def forward(self, x):
        y = x * 2
        flat, row = y.reshape((-1,)), y[1]
        y[:] = 3
        row[:] = 4
        flat[0] = 5
        return y, flat, row

    assert_same(block(forward), array(3, 4))


def test_writes_into_arrays_from_outside() -> None:
    def forward(self, x):
        before = self.state * 1
        seen = x * self.state
        self.state[:] = seen.mean()
        return before, seen, x * self.state

    net = block(forward)
    net.state = mx.nd.array([2.0])
    x, found = array(3, 4), {}
    for name, call in (("plain", net), ("recorded", graphopt.optimize(net, record=True))):
        net.state[:] = 2
        found[name] = values(call(x)) + values(net.state)
    for one, other in zip(found["plain"], found["recorded"], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5)


def test_an_output_argument() -> None:
    def forward(self, x):
        y = mx.nd.zeros((3, 4))
        z = x + y
        mx.nd.broadcast_add(x, x, out=y)
        return y, z

    assert_same(block(forward), array(3, 4))


KEYS = [
    0,
    -1,
    slice(1, 3),
    slice(None),
    slice(None, None, 2),
    slice(None, None, -1),
    (slice(None), 1),
    (1, 2),
    (slice(None), None),
    (Ellipsis, 0),
    (slice(1, None), slice(None, -1), None),
    (0, slice(None), 1),
    [0, 2],
    (slice(None), [0, 0, 1]),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("is_np", [False, True])
def test_indexing(key: Any, is_np: bool) -> None:
    if is_np:
        mx.npx.set_np()
    try:
        x = mx.np.arange(24).reshape(3, 4, 2) if is_np else mx.nd.arange(24).reshape((3, 4, 2))
        assert_same(block(lambda self, x: (x * 2)[key]), x)
    finally:
        mx.npx.reset_np()


INDEX_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "one": lambda rows: rows[:, 0],
    "two": lambda rows: (rows[:, 0], rows[:, 1]),
    "computed": lambda rows: (rows[:, 0] + 0, rows[:, 1] * 1),
    "given": lambda rows: rows,
    "lists": lambda rows: ([0, 1], [1, 2]),
    "of numpy": lambda rows: (np.array([0, 1]), np.array([1, 2])),
    "before a slice": lambda rows: (rows[:, 0], slice(1, 3)),
    "behind a slice": lambda rows: (slice(1, 3), rows[:, 0]),
    "with a new axis": lambda rows: (None, rows[:, 0]),
}


# One interface of each stays quick, by turns.
@pytest.mark.parametrize(
    ("name", "is_np"),
    one_of(
        2,
        [
            (name, (number + turn) % 2 == 1)
            for number, name in enumerate(INDEX_ARRAYS)
            for turn in range(2)
        ],
    ),
)
def test_index_arrays(name: str, is_np: bool) -> None:
    """Of what was computed, of an argument, and of a parameter, which has a gradient."""

    def forward(self, x, rows):
        key, weight = INDEX_ARRAYS[name](rows), self.dense.weight.data()
        return weight[key], x[key], (x * 2)[key]

    if is_np:
        mx.npx.set_np()
    try:
        arrays = mx.np if is_np else mx.nd
        x = arrays.arange(25).reshape((5, 5))
        rows = arrays.array([[0, 1], [2, 3], [1, 1]], dtype="int32")
        net = block(forward, dense=nn.Dense(5, in_units=5))
        optimized = assert_same(net, x, rows)
        gradients = []
        for call in (net, optimized):
            with mx.autograd.record():
                loss = sum((found * found).sum() for found in call(x, rows))
            loss.backward()
            gradients.append(net.dense.weight.grad().asnumpy())
        np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-5)
        assert gradients[0].any()
    finally:
        mx.npx.reset_np()


def test_indexing_out_of_bounds_raises_as_ever() -> None:
    net = graphopt.optimize(block(lambda self, x: (x * 2)[:, 9]), record=True)
    with pytest.raises(IndexError, match="out of bounds"):
        net(array(2, 3))
    assert graphopt.optimize(block(lambda self, x: x + 1), record=True)(array(1)).shape == (1,)


METHODS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda y: y.copy(),
    "astype": lambda y: y.astype("float64"),
    "cast to itself": lambda y: y.astype("float32", copy=False),
    "detach": lambda y: y.detach(),
    "T": lambda y: y.T,
    "as_in_context": lambda y: y.as_in_context(mx.cpu()),
    "split": lambda y: mx.nd.split(y, 2, axis=1),
    "iteration": lambda y: [row * 2 for row in y],
    "comparison": lambda y: (y > 0) * y,
    "right operand": lambda y: 2 / (1 - y),
    "no axes": lambda y: y.sum(),
    "reverse": lambda y: y.reshape((0, -1), reverse=True),
    "topk": lambda y: y.topk(k=2, ret_typ="both"),
    "numbers of rows": lambda y: mx.nd.take(y, mx.nd.array([1, 0])),
    "random of a seed": lambda y: y + mx.nd.random.uniform(shape=(1,)) * 0,
}


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str) -> None:
    assert_same(block(lambda self, x: METHODS[name](x * 2)), array(3, 4))


def test_results_of_unknown_shape() -> None:
    def forward(self, x):
        kept = mx.nd.contrib.boolean_mask(x * 2, (x.sum(axis=1) > 0))
        return kept * 3

    assert_same(block(forward), array(6, 4))
