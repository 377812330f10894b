"""Plain Blocks whose code makes, fills, shares or is given lists and the like of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


def dense() -> Any:
    return nn.Dense(2, in_units=2, use_bias=False)


class Choosing(gluon.Block):
    """Chooses its layers as it is called, and keeps the choice in many ways."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.a, self.b = dense(), dense()
        self.filled: list[Any] = []
        self.by_name: dict[str, Any] = {}
        self.calls: list[float] = []

    def forward(self, x):
        if not self.filled:
            self.filled.append(self.a)
        self.by_name.setdefault("b", self.b)
        self.calls.append(1.0)
        self.order = [self.a, self.b]
        later = self.later = []
        later.append(self.b)
        self.nested = {"one": self.a, "more": [self.b]}
        self.pair = (self.a, [self.b])
        more = [*self.nested["more"], self.pair[0], *self.pair[1]]
        self.kinds = []
        for layer in [*self.filled, *self.by_name.values(), *self.order, *self.later, *more]:
            self.kinds.append(hasattr(layer, "graphopt_state"))
            x = layer(x)
        return x

    def keeps_identity(self) -> Any:
        found = self.order = [self.a]
        found.append(self.b)
        self.again = self.order
        return self.order is found, self.again is found, len(self.order)


class Child(gluon.Block):
    """Writes into what others have as well."""

    def __init__(self, shared: list[Any], config: dict[str, Any], empty: list[Any]) -> None:
        super().__init__()
        self.shared, self.config, self.empty = shared, config, empty

    def put(self, value: Any) -> None:
        self.shared.append(value)
        self.empty.append(value)
        self.config["n"] += 1

    def forward(self, x):
        return x


class Sharing(gluon.Block):
    """Its children are registered before the Block in what they share."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: list[Any] = []
        self.config: dict[str, Any] = {"n": 0, "shared": self.shared}
        self.empty: list[Any] = []
        self.first = Child(self.shared, self.config, self.empty)
        self.second = Child(self.shared, self.config, self.empty)
        self.a = dense()
        self.shared.append(self.a)

    def write(self) -> Any:
        self.first.put(1)
        self.second.put(self.a)
        self.shared.append(2)
        told = len(self.first.shared), len(self.second.shared), len(self.first.empty)
        same = self.empty is self.second.empty, self.config["shared"] is self.first.shared
        return told, same, self.config["n"]

    def forward(self, x):
        return self.a(x)


class Given(gluon.Block):
    """Fills what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.inner = dense(), nn.Sequential()
        self.inner.add(dense(), Child([], {}, []))

    def collect(self, found: Any, by_name: Any, pair: Any) -> None:
        found.append(self.inner)
        by_name["a"] = self.a
        pair[0].append(self.inner)

    def keep(self, found: Any) -> Any:
        found.append(self.a)
        self.mine = found
        return self.mine

    def run_with(self, layers: Any, x: Any) -> Any:
        for layer in [*layers]:
            x = layer(x)
        layers.append(self.inner)
        return x

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("record", [None, False])
def test_layers_that_forward_chooses(record: bool | None) -> None:
    x, outputs, found = mx.nd.array([[1, 2]]), [], []
    for is_optimized in (False, True):
        net = Choosing()
        net.initialize(mx.init.Constant(0.5))
        called = graphopt.optimize(net, record=record) if is_optimized else net
        outputs.append([called(x).asnumpy() for _ in range(3)])
        kept = [*net.filled, *net.by_name.values(), *net.order, *net.later, *net.nested["more"]]
        kept += [net.pair[0], *net.pair[1]]
        found.append([layer is net.a or (layer is net.b and "b") for layer in kept])
        found[-1] += [len(net.calls), called.keeps_identity(), net.again is net.order]
        if is_optimized and record is False:
            assert all(net.kinds)
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)
    assert found[1] == found[0]


@pytest.mark.filterwarnings("ignore:.*unregistered container")
@pytest.mark.parametrize("record", [None, False])
def test_lists_that_children_share(record: bool | None) -> None:
    x, outputs, found = mx.nd.array([[1, 2]]), [], []
    for is_optimized in (False, True):
        net = Sharing()
        net.initialize(mx.init.One())
        called = graphopt.optimize(net, record=record) if is_optimized else net
        seen: list[Any] = [called(x).asnumpy()]
        for _ in range(3):
            found.append((is_optimized, called.write(), net.config["n"]))
            found.append((is_optimized, [value is net.a or value for value in net.shared]))
            found.append((is_optimized, [value is net.a or value for value in net.empty]))
            net.empty.append(3)
        assert net.first.shared is net.shared
        outputs.append([*seen, called(x).asnumpy()])
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)
    half = len(found) // 2
    assert [each[1:] for each in found[half:]] == [each[1:] for each in found[:half]]


def test_lists_that_are_given() -> None:
    x = mx.nd.array([[1, 2]])
    net = Given()
    net.initialize(mx.init.One())
    called = graphopt.optimize(net, record=False)
    called(x)
    layers, by_name, pair = [], {}, ([],)
    called.collect(layers, by_name, pair)
    assert layers[0] is net.inner
    assert by_name["a"] is net.a
    assert pair[0][0] is net.inner
    kept: list[Any] = []
    assert called.keep(kept) is kept
    assert net.mine is kept
    assert kept[0] is net.a
    chosen = [net.a]
    got = called.run_with(chosen, x)
    np.testing.assert_allclose(got.asnumpy(), net.a(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert chosen[1] is net.inner
