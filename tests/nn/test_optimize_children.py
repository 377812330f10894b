"""Blocks that do not compile whole are optimized child by child."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from tests.nn.optimize_support import gradients, image, same, small_cnn

mx = import_mxnet()
nn = mx.gluon.nn


class Mixed(mx.gluon.Block):
    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.head = nn.Dense(4, activation="relu")
            self.tail = nn.HybridSequential()
            self.tail.add(nn.Dense(3), nn.LayerNorm())
        self.layers = [self.head, self.tail]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if x.sum().asscalar() > 1e9:
                return x
        return x


def test_a_plain_block_is_taken_child_by_child() -> None:
    net = Mixed()
    net.initialize()
    fast = graphopt.optimize(net, record=False)
    x = mx.nd.random.normal(shape=(2, 6))
    same(fast(x), net(x))
    text = fast.explain()
    assert "is no HybridBlock" in text
    assert "child 'head': Dense" in text
    assert len(fast.receipts()) == 2
    assert type(net.head) is nn.Dense
    want, got = gradients(net, x), gradients(fast, x)
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-5, atol=1e-5)


def test_a_hybrid_block_that_looks_at_values_is_taken_child_by_child() -> None:
    class Peeks(mx.gluon.HybridBlock):
        def __init__(self, **kwargs: object) -> None:
            super().__init__(**kwargs)
            with self.name_scope():
                self.dense = nn.Dense(2)

        def hybrid_forward(self, F, x):
            y = self.dense(x)
            return y if y.sum().asscalar() > 0 else -y

    net = Peeks()
    net.initialize()
    x = mx.nd.ones((1, 3))
    fast = graphopt.optimize(net)
    same(fast(x), net(x))
    assert "cannot be traced" in fast.explain()
    with pytest.raises(UnsupportedError, match="cannot be traced"):
        graphopt.optimize(net, strict=True)(x)


@pytest.mark.parametrize("active", [False, True])
def test_hooks_of_children_see_arrays(active: bool) -> None:
    net = small_cnn()
    net.hybridize(active)
    seen: list[str] = []
    net[0].register_forward_hook(lambda block, args, out: seen.append(type(out).__name__))
    fast = graphopt.optimize(net)
    for _ in range(2):
        fast(image())
    assert seen == ["NDArray"] * 2
    assert "forward hooks" in fast.explain()


class AroundLSTM(mx.gluon.Block):
    """Python around a recurrence: what no tracing can follow."""

    def __init__(self, **more: object) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.enter = mx.gluon.nn.Dense(5, flatten=False, in_units=3)
            self.lstm = mx.gluon.rnn.LSTM(4, input_size=5)
            self.leave = mx.gluon.nn.Dense(2, flatten=False, in_units=4)

    def forward(self, x):
        y = self.lstm(self.enter(x))
        if y.sum().asscalar() > 0:  # depends on values
            y = -y
        return self.leave(y)


def test_a_block_around_a_recurrence_is_split() -> None:
    net = AroundLSTM()
    net.initialize(mx.init.Uniform(0.5))
    fast = graphopt.optimize(net, record=False)
    for steps, batch in ((6, 2), (9, 2), (4, 3)):
        x = mx.nd.random.normal(shape=(steps, batch, 3))
        assert np.allclose(fast(x).asnumpy(), net(x).asnumpy(), atol=1e-6)
    told = fast.explain()
    for name, part in {"enter": "pre", "lstm": "core", "leave": "post"}.items():
        (line,) = (line for line in told.splitlines() if f"child '{name}'" in line)
        assert f"({part}" in line
    assert "import-rnn" in told


def named_alike(make: Any) -> Any:
    """Two layers of other weights by the same names, as imports of one file are."""
    net = make()
    for number in (1, 2):
        layer = nn.Dense(2, in_units=2, prefix="dense_")
        layer.initialize(mx.init.Constant(number))
        net.add(layer)
    return net


@pytest.mark.parametrize("make", [nn.HybridSequential, nn.Sequential])
def test_blocks_with_parameters_of_the_same_names_are_apart(make: Any) -> None:
    net, x = named_alike(make), mx.nd.ones((1, 2))
    fast = graphopt.optimize(net)
    for _ in range(3):
        same(fast(x), net(x))
    assert "cannot collect parameters" in fast.explain()
    with mx.autograd.record():
        fast(x).backward()
    assert [layer.weight.grad().asnumpy().sum() for layer in net] == [16, 8]
    for options in ({"strict": True}, {"record": True}):
        asked = graphopt.optimize(named_alike(make), **options)
        for _ in range(2):
            with pytest.raises(UnsupportedError, match="same name 'dense_weight'"):
                asked(x)
