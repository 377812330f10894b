"""Plain Blocks with lists and the like that hold each other, are deep, or are gone through."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class Linked(gluon.Block):
    """A tree whose nodes know their parents, and others."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.a, self.b = (nn.Dense(2, in_units=2, use_bias=False) for _ in range(2))
        self.initialize(mx.init.One())  # MXNet looks for Blocks in circles for ever
        self.root: dict[str, Any] = {"layer": self.a, "n": 0}
        self.leaf: dict[str, Any] = {"layer": self.b, "parent": self.root, "below": {}}
        self.root["below"] = (self.leaf, [self.leaf])
        self.by_array: dict[Any, Any] = {"layer": self.a}
        self.by_number: dict[Any, Any] = {1: self.a}
        self.ordered = OrderedDict(a=self.a, b=self.b)
        self.queue = deque([self.a, self.b])

    def are_same(self) -> Any:
        below = self.root["below"]
        return self.leaf["parent"] is self.root, below[0] is self.leaf, below[1][0] is self.leaf

    def write_through_links(self) -> Any:
        self.leaf["parent"]["n"] += 1
        self.root["n"] += 1
        self.root["below"][1].append(self.root)
        return self.root["n"], len(self.leaf["parent"]["below"][1])

    def grow(self) -> Any:
        node: dict[str, Any] = {"layer": self.a}
        node["self"] = node
        self.leaf["below"]["new"] = node
        return self.leaf["below"]["new"]["self"] is node

    def set_circle(self) -> Any:
        node: dict[str, Any] = {"layer": self.a}
        node["nodes"] = [node]
        self.node = node
        node["other"] = self.b
        return self.node["nodes"][0] is node

    def set_deep_tuple(self) -> Any:
        deep: Any = (self.a,)
        for _ in range(1500):
            deep = (deep, 1)
        self.deep = found = deep
        while isinstance(found, tuple):
            found = found[0]
        return found is self.a

    def set_deep_dict(self) -> Any:
        deep: Any = {"layer": self.a}
        for _ in range(1500):
            deep = {"next": deep}
        self.deep = deep
        deep["last"] = self.b
        return len(self.deep)

    def use_arrays_as_keys(self) -> Any:
        self.by_array[mx.nd.ones((1, 2))] = self.b
        return len(self.by_array)

    def exchange_an_equal_key(self) -> Any:
        del self.by_number[1]
        self.by_number[True] = self.b

    def set_both(self, at: Any) -> None:
        (self.ordered if isinstance(at, str) else self.queue)[at] = self.b

    def forward(self, x):
        return self.leaf["parent"]["layer"](self.leaf["layer"](x))


#: What methods are called before and after others.
METHODS = [n for n in vars(Linked) if n[0] != "_" and n not in ("forward", "set_both")]


def told(net: Any, value: Any, seen: tuple[Any, ...] = ()) -> Any:
    """What a net holds, told by names and numbers; deep ones in part."""
    if isinstance(value, gluon.Block):
        return next((k for k, v in vars(net).items() if v is value), "another")
    if any(each is value for each in seen):
        return "above", next(i for i, each in enumerate(seen) if each is value)
    if len(seen) > 20 or isinstance(value, mx.nd.NDArray):
        return type(value)
    seen = (*seen, value)
    if isinstance(value, dict):
        return [(told(net, k, seen), told(net, v, seen)) for k, v in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [told(net, part, seen) for part in value]
    return type(value), value


@pytest.mark.parametrize("method", METHODS)
def test_what_holds_each_other(method: str) -> None:
    x, found, outputs = mx.nd.array([[1, 2]]), [], []
    for is_optimized in (False, True):
        net = Linked()
        called = graphopt.optimize(net, record=False) if is_optimized else net
        seen = [called(x).asnumpy()]
        got = [getattr(called, method)() for _ in range(2)]
        held = {k: told(net, v) for k, v in vars(net).items() if not k.startswith("_")}
        found.append((got, held, called.are_same()))
        outputs.append([*seen, called(x).asnumpy(), net(x).asnumpy()])
    assert found[1] == found[0]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)


def test_a_user_goes_through_what_a_method_writes_into() -> None:
    net = Linked()
    called = graphopt.optimize(net, record=False)
    called(mx.nd.ones((1, 2)))
    for name in net.ordered:
        called.set_both(name)
    for at, _ in enumerate(net.queue):
        called.set_both(at)
    assert all(layer is net.b for layer in [*net.ordered.values(), *net.queue])
