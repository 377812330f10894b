"""Plain Blocks whose lists and dicts hold Blocks, and are written to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class Stack(gluon.Block):
    """Layers in a list, which grows."""

    def __init__(self, *blocks: Any) -> None:
        super().__init__()
        self.layers: list[Any] = []
        for block in blocks:
            self.add(block)

    def add(self, block: Any) -> None:
        self.layers.append(block)
        self.register_child(block)

    def drop(self) -> Any:
        return self.layers.pop()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Scaled(gluon.Block):
    """A dict with a Block and numbers."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2)
        self.config: dict[str, Any] = {"net": self.dense, "gain": 1.0, "calls": 0}

    def scale(self, gain: float) -> None:
        self.config["gain"] = gain

    def forward(self, x):
        self.config["calls"] += 1
        if x.sum().asscalar() < 0:  # no graph has that
            x = -x
        return self.config["net"](x) * self.config["gain"]


def dense(units: int, inputs: int) -> Any:
    return nn.Dense(units, in_units=inputs)


def ones(units: int, inputs: int) -> Any:
    made = dense(units, inputs)
    made.initialize(mx.init.One())
    return made


def values(*found: Any) -> list[Any]:
    return [one.asnumpy().tolist() if hasattr(one, "asnumpy") else one for one in found]


def test_a_decorated_class_fills_its_list() -> None:
    found = []
    for made in (Stack, graphopt.optimize(type("Stack", (Stack,), {}))):
        net = made(dense(4, 5), dense(3, 4), dense(2, 3))
        net.initialize(mx.init.One())
        found.append(values(net(mx.nd.ones((1, 5))), len(net.layers), len(net._children)))
    assert found[1] == found[0]
    assert found[0][1:] == [3, 3]


@pytest.mark.parametrize("record", [None, True, False])
def test_a_list_grows_and_shrinks(record: bool | None) -> None:
    x, found = mx.nd.ones((1, 5)), []
    for is_optimized in (False, True):
        net = Stack(dense(4, 5))
        net.initialize(mx.init.One())
        called = graphopt.optimize(net, record=record) if is_optimized else net
        seen = [*values(called(x))]
        called.add(ones(3, 4))
        seen += values(called(x), len(net.layers), len(net._children))
        net.layers.append(ones(2, 3))
        seen += values(called(x), len(called.layers))
        called.drop()
        seen += values(called(x), len(net.layers))
        del net.layers[0]
        net.layers.insert(0, ones(4, 5))
        seen += values(called(x))
        assert all(type(layer) is nn.Dense for layer in net.layers)
        found.append(seen)
    assert found[1] == found[0]


@pytest.mark.parametrize("record", [None, True, False])
def test_what_lies_beside_a_block_in_a_dict(record: bool | None) -> None:
    x, found = mx.nd.ones((1, 2)), []
    for is_optimized in (False, True):
        net = Scaled()
        net.initialize(mx.init.One())
        called = graphopt.optimize(net, record=record) if is_optimized else net
        seen = values(called(x))
        called.scale(5.0)
        seen += values(called(x), net.config["gain"])
        net.config["gain"] = 10.0
        for _ in range(14):
            seen += values(called(x))
        seen += values(net.config["calls"] >= 16, net.config["net"] is net.dense)
        found.append(seen)
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
