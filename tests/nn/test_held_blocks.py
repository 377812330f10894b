"""Plain Blocks whose lists, dicts and the like hold Blocks, and are written to."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

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

    def put_away(self, block: Any) -> None:
        self.layers.remove(block)

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


class Named(NamedTuple):
    layer: Any
    others: list[Any]


class Inner(gluon.Block):
    """A child that has lists as well."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2)
        self.layers = [self.dense]

    def grow(self) -> None:
        self.layers.append(self.dense)

    def forward(self, x):
        return x


class Nested(gluon.Block):
    """Containers of all kinds, also within others. Methods return what is told of Blocks."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.a, self.b, self.c = (nn.Dense(2, in_units=2, use_bias=False) for _ in range(3))
            self.inner = Inner()
        a, b, c = self.a, self.b, self.c
        self.groups = [[a, b], [c]]
        self.by_name = {"x": [a, b], "n": 1}
        self.pair = ([a], [b, c])
        self.some, self.fixed = {a, b}, frozenset([a, b])
        self.ordered = OrderedDict([("a", a), ("b", [b])])
        self.default: Any = defaultdict(list, k=[a])
        self.queue = deque([a, b], maxlen=3)
        self.named = Named(a, [b])
        self.gains = {a: 1.5, b: 2.5}
        self.counts = [[a, 0]]

    def grow_groups(self) -> Any:
        self.groups[0].append(self.c)
        self.groups.append([self.a])
        self.groups[-1].append(self.b)

    def fill_by_another_name(self) -> Any:
        group = self.groups[1]
        group[:] = [self.a, self.a]
        return self.groups[1] is group

    def count(self) -> Any:
        self.counts[0][1] += 1
        self.counts.append([self.b, 7])

    def change_lists_in_a_dict(self) -> Any:
        self.by_name["x"].pop()
        self.by_name["y"] = [self.b]
        self.by_name["n"] = 5

    def change_lists_in_a_tuple(self) -> Any:
        self.pair[0].append(self.b)

    def change_a_set(self) -> Any:
        found = self.a in self.some, self.c in self.some, self.a in self.fixed
        self.some.add(self.c)
        self.some.discard(self.a)
        return found

    def change_an_ordered_dict(self) -> Any:
        self.ordered["c"] = self.c
        self.ordered["b"].append(self.a)
        self.ordered.move_to_end("a")

    def change_a_default_dict(self) -> Any:
        self.default["k"].append(self.b)
        self.default["new"].append(self.c)
        return self.default["k"][0] is self.a

    def change_a_queue(self) -> Any:
        self.queue.append(self.c)
        self.queue.append(self.a)
        return self.queue[0] is self.b

    def change_a_list_in_a_named_tuple(self) -> Any:
        self.named.others.append(self.a)
        return self.named.layer is self.a

    def change_what_blocks_are_keys_of(self) -> Any:
        self.gains[self.a] = 9
        self.gains[self.c] = 1
        return self.gains[self.b]

    def grow_a_child(self) -> Any:
        self.inner.grow()

    def forward(self, x):
        for group in self.groups:
            for layer in group:
                x = layer(x)
        for layer, gain in self.gains.items():
            x = layer(x) * gain
        for layer in self.queue:
            x = layer(x)
        return x


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


def names(net: Any, value: Any) -> Any:
    """What a container of a net holds, with the names of its Blocks; sets in order."""
    if isinstance(value, gluon.Block):
        return next((k for k, v in vars(net).items() if v is value), "another")
    if isinstance(value, dict):
        return [type(value), [(names(net, k), names(net, v)) for k, v in value.items()]]
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        found = [names(net, part) for part in value]
        return [type(value), sorted(found) if isinstance(value, (set, frozenset)) else found]
    return value


METHODS = [name for name in vars(Nested) if not name.startswith("_") and name != "forward"]


@pytest.mark.parametrize("method", METHODS)
def test_what_is_written_into_containers_of_all_kinds(method: str) -> None:
    x, found, values = mx.nd.ones((1, 2)), [], []
    for is_optimized in (False, True):
        net = Nested()
        net.initialize(mx.init.One())
        called = graphopt.optimize(net, record=False) if is_optimized else net
        called(x)
        got = getattr(called, method)()
        held = [names(net, v) for k, v in vars(net).items() if not k.startswith("_")]
        found.append((got, held, names(net.inner, net.inner.layers)))
        outputs = [called(x).asnumpy()]
        net.groups[0].insert(0, net.c)
        net.groups.append([net.a])
        net.queue.append(net.b)
        values.append([*outputs, called(x).asnumpy(), net(x).asnumpy()])
    assert found[1] == found[0]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-6)


class Kept:
    """Can be asked whether it is still there, unlike a number."""

    def __add__(self, other):
        return other + 1


class Cached(gluon.Block):
    """Keeps a layer beside what another one returned, in a list and in a slot."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2)
        self.pairs: list[Any] = []
        self.last: Any = [self.dense, Kept()]

    def forward(self, x):
        if x.sum().asscalar() < 0:  # no graph has that
            x = -x
        for layer, kept in [*self.pairs, self.last]:
            x = kept + layer(x)
        self.last = [self.dense, Kept()]
        return x


def test_what_was_held_is_let_go() -> None:
    x, values, left = mx.nd.ones((1, 2)), [], []
    for is_optimized in (False, True):
        net = Cached()
        net.initialize(mx.init.One())
        called = graphopt.optimize(net, record=False) if is_optimized else net
        seen = []
        for _ in range(5):
            net.pairs[:] = [(net.dense, Kept())]
            seen += [weakref.ref(net.pairs[0][1]), weakref.ref(net.last[1])]
            values.append(called(x).asnumpy().tolist())
        gc.collect()
        left.append(sum(each() is not None for each in seen))
    assert values[:5] == values[5:]
    assert left == [1, 1]


class Tree(gluon.Block):
    """A node knows those below it, and these it."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2)
        leaf: dict[str, Any] = {"layer": self.dense, "calls": 0}
        self.root: dict[str, Any] = {"layer": self.dense, "below": deque([leaf])}
        leaf["parent"] = self.root

    def forward(self, x):
        if x.sum().asscalar() < 0:  # no graph has that
            x = -x
        leaf = self.root["below"][0]
        leaf["calls"] += 1
        return leaf["layer"](self.root["layer"](x))


def test_lists_that_hold_each_other() -> None:
    x, found = mx.nd.ones((1, 2)), []
    for is_optimized in (False, True):
        net = Tree()
        net.initialize(mx.init.One())
        called = graphopt.optimize(net, record=False) if is_optimized else net
        values = [called(x).asnumpy().tolist() for _ in range(3)]
        found.append((values, net.root["below"][0]["calls"]))
    assert found[1] == found[0]


class Shared(gluon.Block):
    """Returns a lattice, in which each tuple holds the next one twice."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2)

    def lattice(self) -> Any:
        node: Any = (self.dense, None)
        for _ in range(25):
            node = (node, node)
        return node

    def forward(self, x):
        return self.dense(x) if x.sum().asscalar() > 0 else x


def test_tuples_that_are_shared_are_looked_at_once() -> None:
    net = Shared()
    net.initialize()
    called = graphopt.optimize(net, record=False)
    called(mx.nd.ones((1, 2)))
    node = called.lattice()
    for _ in range(25):
        assert node[0] is node[1]
        node = node[0]
    assert node[0] is net.dense


def test_an_argument_of_a_method_is_known_to_it() -> None:
    first, second = nn.Dense(2, in_units=2), nn.Dense(2, in_units=2)
    net = Stack(first, second)
    net.initialize()
    called = graphopt.optimize(net, record=False)
    called(mx.nd.ones((1, 2)))
    called.put_away(first)
    assert net.layers == [second]


class Sharing(gluon.Block):
    """Its first child is registered before the Block in the list that both have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dense = Stack(), nn.Dense(2, in_units=2)
        self.layers = self.first.layers

    def write(self) -> Any:
        self.layers.append(1)
        self.first.layers.append(2)
        return self.layers is self.first.layers

    def forward(self, x):
        return self.layers[0](x)


@pytest.mark.filterwarnings("ignore:.*unregistered container")
def test_a_list_that_a_child_has_as_well() -> None:
    x, found = mx.nd.ones((1, 2)), []
    for is_optimized in (False, True):
        net = Sharing()
        net.initialize(mx.init.One())
        net.layers.append(net.dense)
        called = graphopt.optimize(net, record=False) if is_optimized else net
        seen = [*values(called(x)), called.write(), called.write(), net.layers[1:]]
        found.append([*seen, net.layers is net.first.layers, *values(called(x))])
    assert found[1] == found[0]
