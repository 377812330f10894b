"""What methods of plain Blocks hand over to the user: the user's own Blocks, and never twins."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class Inner(gluon.Block):
    """A child that is taken child by child itself."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2, use_bias=False)

    def itself(self) -> Any:
        return self

    def another(self) -> Any:
        made = type(self)()
        made.mark = "made"
        return made

    def raw(self) -> Any:
        made = self.__class__.__new__(self.__class__)
        made.__dict__.update(vars(self))
        made.mark = "made"
        return made

    def is_of_kind(self, other: Any) -> bool:
        return isinstance(other, type(self))

    def forward(self, x):
        return self.dense(x)


class Net(gluon.Block):
    """Gives away itself and its children, and sets them as attributes and as children."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.a, self.b = (nn.Dense(2, in_units=2, use_bias=False) for _ in range(2))
            self.c = Inner()
        self.layers = [self.a, self.b]

    def itself(self) -> Any:
        return self

    def child(self) -> Any:
        return self.b

    def child_itself(self) -> Any:
        return self.c.itself()

    def list_of_children(self) -> Any:
        return self.layers

    def others_within(self) -> Any:
        return [self.a, {"x": self.b}, (self.c,)]

    def bound(self) -> Any:
        return self.child, self.c.itself

    def set_children(self) -> Any:
        self.first, self.second = self.b, self.c

    def set_lists(self) -> Any:
        order = self.order = []
        order.append(self.a)
        self.others = others = [self.a]
        others.append(self.b)
        return self.others is others

    def set_others(self) -> Any:
        self.found = self.child
        self.by_name = {"b": self.b, self.a: 1}
        self.pair = (self.a, self.c)

    def add_in_place(self) -> Any:
        self.layers += [self.c]

    def append(self) -> Any:
        self.layers.append(self.c)

    def exchange(self) -> Any:
        self.a, self.b = self.b, self.a

    def set_fewer_children(self) -> Any:
        self._children = OrderedDict([*self._children.items()][:2])

    def join_children(self) -> Any:
        self._children |= {"again": self.a}

    def register(self) -> Any:
        self._children["again"] = self.b
        self.register_child(self.c, "more")

    def take_copies(self) -> Any:
        self.copied = copy.deepcopy(self.c)
        found = copy.copy(self.c), copy.deepcopy(self), pickle.loads(pickle.dumps(self.c))
        for each in found:
            each.mark = "copy"
        return [type(each) for each in found]

    def make_others(self) -> Any:
        made = self.c.another(), self.c.raw(), type(self)()
        made[2].mark = "made"
        self.made = made[0]
        self.made.initialize(mx.init.One())
        return [type(each) for each in made]

    def ask_for_kinds(self) -> Any:
        others = self.c, self.c.another(), self.a
        return [self.c.is_of_kind(other) for other in others]

    def forward(self, x):
        return self.c(self.b(self.a(x)))


class Linked(Net):
    """Returns what holds itself, and a chain."""

    def circle(self) -> Any:
        node: dict[str, Any] = {"layer": self.b}
        node["node"] = node
        return node

    def chain(self) -> Any:
        link: list[Any] = []
        for _ in range(5000):
            link = [link]
        return link


def told(value: Any, known: dict[int, str]) -> Any:
    """The same with names in place of Blocks that are known, and the class of others."""
    if isinstance(value, gluon.Block):
        return known.get(id(value), type(value))
    if isinstance(value, dict):
        return [(told(key, known), told(part, known)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [told(part, known) for part in value]
    if hasattr(value, "__func__"):
        return told(value.__self__, known), value.__name__
    return value


METHODS = [name for name in vars(Net) if not name.startswith("_") and name != "forward"]


@pytest.mark.parametrize("method", METHODS)
def test_what_methods_hand_over_is_the_users(method: str) -> None:
    x, found, values = mx.nd.ones((1, 2)), [], []
    for is_optimized in (False, True):
        net = Net()
        net.initialize(mx.init.One())
        called = graphopt.optimize(net, record=False) if is_optimized else net
        called(x)
        known = {id(net): "net", id(called): "net", id(net.a): "a", id(net.b): "b", id(net.c): "c"}
        got = getattr(called, method)()
        held = {k: told(v, known) for k, v in vars(net).items() if k[0] != "_" or k == "_children"}
        found.append((told(got, known), held, hasattr(net, "mark"), hasattr(net.c, "mark")))
        values.append([called(x).asnumpy(), net(x).asnumpy()])
    assert found[1] == found[0]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-6)


def test_a_decorated_block_is_itself() -> None:
    net = graphopt.optimize(type("Net", (Net,), {}))()
    net.initialize(mx.init.One())
    net(mx.nd.ones((1, 2)))
    assert net.itself() is net
    assert net.others_within()[2][0] is net.c
    assert net.bound()[0].__self__ is net


def test_what_methods_return_may_hold_itself_and_be_deep() -> None:
    net = Linked()
    net.initialize()
    called = graphopt.optimize(net)
    circle = called.circle()
    assert circle["layer"] is net.b
    assert circle["node"] is circle
    assert len(called.chain()) == 1
