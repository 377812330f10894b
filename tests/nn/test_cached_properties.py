"""Attributes that code of twins writes past ``__setattr__``: the user's object has the user's."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class Lazy(gluon.Block):
    """Has children under names that are there once they are read."""

    scale = 2

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.a, self.b = (nn.Dense(2, in_units=2) for _ in range(2))

    @cached_property
    def first(self) -> Any:
        return self.a

    @cached_property
    def layers(self) -> Any:
        return [self.a, self.b]

    @cached_property
    def number(self) -> int:
        return len(self.layers)

    def read(self) -> Any:
        return self.layers is self.layers, self.layers[0] is self.first, self.first is self.a

    def forget(self) -> Any:
        del self.first
        return "first" in vars(self), self.first is self.a, "first" in vars(self)

    def forget_twice(self) -> bool:
        del self.first
        try:
            del self.first
        except AttributeError as error:
            return "first" in str(error)
        return False

    def exchange(self) -> Any:
        object.__setattr__(self, "first", self.b)
        return self.first is self.b

    def exchange_list(self) -> Any:
        layers: list[Any] = []
        object.__setattr__(self, "layers", layers)
        layers += [self.b, self.a]
        return self.layers is layers, self.layers[0] is self.b

    def fall_back(self) -> Any:
        self.scale = self.a
        found = self.scale is self.a
        del self.scale
        return found, self.scale

    def forward(self, x):
        return self.first(x) * self.number + self.layers[1](x)


class Net(gluon.Block):
    """Has one as a child."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.lazy = Lazy()

    @cached_property
    def child(self) -> Any:
        return self.lazy

    def ask_child(self, name: str) -> Any:
        return getattr(self.child, name)()

    def forward(self, x):
        return self.child(x)


def told(net: Any) -> dict[str, Any]:
    """What the user finds in place of each cached property."""
    lazy = net.lazy
    names = {id(net.lazy): "lazy", id(lazy.a): "a", id(lazy.b): "b"}
    found = {name: vars(lazy).get(name) for name in ("first", "layers", "number")}
    found["child"] = vars(net).get("child")
    found["scale"] = lazy.scale
    return {
        key: [names[id(each)] for each in value]
        if isinstance(value, list)
        else names.get(id(value), value)
        for key, value in found.items()
    }


@pytest.mark.parametrize("is_called_before", [False, True])
@pytest.mark.parametrize("record", [False, None])
@pytest.mark.parametrize(
    "name", ["read", "forget", "forget_twice", "exchange", "exchange_list", "fall_back"]
)
def test_the_user_finds_own_blocks(name: str, record: bool | None, is_called_before: bool) -> None:
    x, answers, results = mx.nd.array([[1, 2]]), [], []
    for is_plain in (True, False):
        net = Net()
        net.initialize(mx.init.One(), ctx=mx.cpu())
        net.lazy.b.weight.set_data(mx.nd.ones((2, 2)) * 3)
        if is_called_before:
            net(x)
        called = net if is_plain else graphopt.optimize(net, record=record)
        found = [called(x).asnumpy()]
        told_before = told(net)
        asked = called.ask_child(name)
        found += [called(x).asnumpy(), called.ask_child("read"), called(x).asnumpy()]
        answers.append((told_before, asked, told(net)))
        results.append(found)
    assert answers[0] == answers[1]
    for plain, other in zip(*results, strict=True):
        np.testing.assert_allclose(other, plain, atol=1e-5)


def test_what_the_user_replaces_is_what_runs() -> None:
    net, x = Net(), mx.nd.array([[1, 2]])
    net.initialize(mx.init.One(), ctx=mx.cpu())
    view = graphopt.optimize(net, record=False)
    np.testing.assert_allclose(view(x).asnumpy(), net(x).asnumpy(), atol=1e-6)
    with net.lazy.name_scope():
        net.lazy.a = nn.Dense(2, in_units=2)
    net.lazy.a.initialize(mx.init.Constant(5), ctx=mx.cpu())
    del net.lazy.first, net.lazy.layers
    np.testing.assert_allclose(view(x).asnumpy(), [[2 * 15 + 3] * 2], atol=1e-5)
    assert net.lazy.first is net.lazy.a
    np.testing.assert_allclose(net(x).asnumpy(), [[2 * 15 + 3] * 2], atol=1e-5)
