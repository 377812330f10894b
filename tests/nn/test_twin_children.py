"""Methods of plain Blocks that write to the children, taken child by child."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


def dense(weight: float) -> Any:
    made = nn.Dense(2, in_units=2, use_bias=False)
    made.initialize(mx.init.Constant(weight))
    return made


def sum_of(layer: Any) -> float:
    return float(layer.weight.data().sum().asscalar())


class Branching(gluon.Block):
    """No graph has it."""

    def forward(self, x):
        return x if x.sum().asscalar() > 0 else -x


class Stack(nn.Sequential):
    """Layers of which three are one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.add(dense(1), dense(2), dense(3), Branching())

    def pop(self) -> Any:
        return sum_of(self._children.pop("1"))

    def pop_none(self) -> Any:
        with pytest.raises(KeyError):
            self._children.pop("none")
        return self._children.pop("none", 7)

    def pop_last(self) -> Any:
        return self._children.popitem()[0]

    def pop_first(self) -> Any:
        return self._children.popitem(last=False)[0]

    def pop_all(self) -> Any:
        self._children.clear()
        with pytest.raises(KeyError):
            self._children.popitem()

    def move(self) -> Any:
        self._children["0"].weight.set_data(mx.nd.array([[1, 2], [3, 4]]))
        self._children.move_to_end("0")

    def move_ahead(self) -> Any:
        self._children["2"].weight.set_data(mx.nd.array([[1, 2], [3, 4]]))
        self._children.move_to_end("2", last=False)

    def update(self) -> Any:
        self._children.update({"1": dense(5)}, more=dense(6))

    def set_default(self) -> Any:
        kept = self._children.setdefault("1", None)
        return kept is self._children["1"], sum_of(self._children.setdefault("more", dense(5)))

    def join(self) -> Any:
        children = self._children
        children |= {"more": dense(4)}

    def delete(self) -> Any:
        del self._children["0"]

    def assign(self) -> Any:
        self.more = dense(6)
        return list(self._children)

    def take_copies(self) -> Any:
        children = self._children
        copies = children.copy(), copy.copy(children), copy.deepcopy(children), children | {}
        for each in copies:
            each.clear()
        return [type(each).__name__ for each in copies]

    def make_others(self) -> Any:
        children = self._children
        made = type(children)(children)
        made["more"] = self[0]
        joined = {"first": 1} | children, {**children} | children, children.fromkeys("ab")
        return [[*each] for each in (made, *joined, type(children)())]

    def cut(self, x: Any) -> Any:
        """Children that are one graph may be others by then."""
        del self._children["1"]
        return self.forward(x)


METHODS = [name for name in vars(Stack) if not name.startswith("_") and name != "cut"]


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_does_to_children_is_done_to_the_users(method: str) -> None:
    x, found, values = mx.nd.array([[1, 2]]), [], []
    for is_optimized in (False, True):
        net = Stack()
        called = graphopt.optimize(net, record=False) if is_optimized else net
        called(x)
        got = getattr(called, method)()
        children = [(name, type(child)) for name, child in net._children.items()]
        found.append((got, children, len(net), len(called)))
        values.append([net(x).asnumpy(), called(x).asnumpy()])
    assert found[1] == found[0]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-6)


def test_children_that_were_one_graph_run_one_by_one_in_the_method_that_takes_one_out() -> None:
    net = Stack()
    called = graphopt.optimize(net, record=False)
    x = mx.nd.array([[1, 2]])
    called(x)
    got = called.cut(x)
    np.testing.assert_allclose(got.asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.asnumpy(), [[18, 18]], rtol=1e-5, atol=1e-6)
