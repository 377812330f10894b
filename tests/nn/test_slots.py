"""Blocks whose classes have slots, which are in no ``__dict__``."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class Hybrid(gluon.HybridBlock):
    """A number, a private one and a child in slots."""

    __slots__ = ("__gain", "act", "scale")

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.__gain = 3.0, 2.0
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2, use_bias=False)
            self.act = nn.Activation("relu")

    def change(self) -> Any:
        self.scale += 1
        return self.scale, self.__gain

    def hybrid_forward(self, F, x):
        return self.act(self.dense(x)) * self.scale * self.__gain


class Plain(gluon.Block):
    """A list of children and one of them in slots, and a slot that holds nothing."""

    __slots__ = ("layers", "one", "scale", "unset")

    def __init__(self) -> None:
        super().__init__()
        self.scale = 3.0
        with self.name_scope():
            self.dense, self.other = (nn.Dense(2, in_units=2, use_bias=False) for _ in range(2))
            self.hybrid = Hybrid()
        self.layers, self.one = [self.dense, self.hybrid], self.dense

    def change(self) -> Any:
        self.scale += 1
        self.hybrid.change()
        self.layers.append(self.one)
        found = self.one is self.dense, hasattr(self, "unset"), hasattr(self, "scale")
        self.one = self.other
        return found

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


class Derived(Plain):
    """Has a ``__dict__`` besides, as all Blocks."""


class Outer(gluon.Block):
    """Has one within."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Plain()

    def change(self) -> Any:
        return self.inner.change()

    def forward(self, x):
        return self.inner(x)


def pickled(net: Any) -> Any:
    return pickle.loads(pickle.dumps(net))


@pytest.mark.parametrize("record", [None, True, False])
@pytest.mark.parametrize("is_decorated", [False, True])
@pytest.mark.parametrize("cls", [Hybrid, Plain, Derived, Outer])
def test_values_in_slots_are_shared(cls: Any, is_decorated: bool, record: bool | None) -> None:
    x, found, values = mx.nd.ones((1, 2)), [], []
    for is_optimized in (False, True):
        if is_optimized and is_decorated:
            net = called = graphopt.optimize(type(cls.__name__, (cls,), {}), record=record)()
        else:
            net = cls()
            called = graphopt.optimize(net, record=record) if is_optimized else net
        net.initialize(mx.init.One())
        outputs = [called(x), called(x)]
        seen = [called.change()]
        outputs += [called(x), net(x)]
        if hasattr(cls, "scale"):
            net.scale = 10.0
            outputs += [called(x)]
            called.scale = 20.0
            seen += [net.scale]
            outputs += [called(x), net(x)]
        inner = getattr(net, "inner", net)
        if isinstance(inner, Plain):
            seen += [[type(layer) for layer in inner.layers], inner.one is inner.other]
        copies = [copy.copy, copy.deepcopy, *([] if is_decorated else [pickled])]
        outputs += [made(called)(x) for made in copies]
        found.append(seen)
        values.append([output.asnumpy() for output in outputs])
    assert found[1] == found[0]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-6)


def test_a_slot_can_be_emptied() -> None:
    net = Plain()
    del graphopt.optimize(net).scale
    assert not hasattr(net, "scale")


class Base(gluon.Block):
    __slots__ = ("scale",)


class Hiding(Base):
    """Has a value where its base has a slot."""

    scale = 7.0

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2)

    def forward(self, x):
        y = self.dense(x) if x.sum().asscalar() > 0 else x  # no graph has that
        return y * self.scale


def test_a_slot_that_is_hidden() -> None:
    net = Hiding()
    net.initialize(mx.init.One())
    called, x = graphopt.optimize(net, record=False), mx.nd.ones((1, 2))
    np.testing.assert_allclose(called(x).asnumpy(), net(x).asnumpy(), rtol=1e-6, atol=0)
