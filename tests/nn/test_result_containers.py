"""What HybridBlocks return is nested as MXNet has it: lists of hybridized ones only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.nn.ski_rental import AT_ONCE

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd


class Heads(NamedTuple):
    score: Any
    boxes: Any


class Sized(tuple):
    """A tuple that may hold more than its items."""


def plain_tuple(F: Any, y: Any) -> Any:
    return y, y + 1


def tuple_of_one(F: Any, y: Any) -> Any:
    return (y,)


def plain_list(F: Any, y: Any) -> Any:
    return [y, y + 1]


def nested(F: Any, y: Any) -> Any:
    return y, [y + 1, (y * 2,)]


def list_of_tuples(F: Any, y: Any) -> Any:
    return [(y, y + 1), y * 2]


def named(F: Any, y: Any) -> Any:
    return Heads(y, (y + 1, y * 2))


def parts(F: Any, y: Any) -> Any:
    return F.split(y, num_outputs=3, axis=1), y


def subclass(F: Any, y: Any) -> Any:
    return Sized((y, y + 1))


RETURNED = [plain_tuple, tuple_of_one, plain_list, nested, list_of_tuples, named, parts, subclass]


class Returning(mx.gluon.HybridBlock):
    """A layer, and what a function makes of it."""

    def __init__(self, made: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.made = made
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.made(F, self.dense(x))


class Asking(mx.gluon.HybridBlock):
    """Computes something else of a tuple than of a list."""

    def __init__(self, child: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.child = child

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        found = self.child(x)
        return found[0] * (2 if isinstance(found, tuple) else 3)


class AskingInPython(mx.gluon.Block):
    """Likewise, and is taken apart."""

    def __init__(self, child: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.child = child

    def forward(self, x: Any) -> Any:
        found = self.child(x)
        return found[0] * (2 if isinstance(found, tuple) else 3)


@pytest.fixture
def as_numpy() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def data(rows: int = 2) -> Any:
    return mx.nd.array(np.random.default_rng(0).normal(size=(rows, 4)))


def ready(net: Any, *, hybridized: bool = False) -> Any:
    net.initialize(mx.init.Xavier())
    if hybridized:
        net.hybridize()
    return net


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hybridized", [False, True], ids=["python", "hybridized"])
@pytest.mark.parametrize("made", RETURNED, ids=[each.__name__ for each in RETURNED])
def test_results_are_nested_as_in_mxnet(made: Any, hybridized: bool) -> None:
    net = ready(Returning(made), hybridized=hybridized)
    optimized = graphopt.optimize(net)
    x = data()
    for _ in range(2):
        same(optimized(x), net(x))
        with autograd.record():
            expected, found = net(x), optimized(x)
        same(found, expected)


def test_sizes_that_are_not_compiled_return_the_same_containers() -> None:
    net = ready(Returning(nested))
    optimized = graphopt.optimize(net)
    for rows in range(1, 3 * AT_ONCE):
        same(optimized(data(rows)), net(data(rows)))
    assert len(optimized.receipts()) < 3 * AT_ONCE - 1


def test_containers_follow_hybridize() -> None:
    net = ready(Returning(nested))
    optimized = graphopt.optimize(net)
    for is_active in (False, True, False):
        net.hybridize(is_active)
        same(optimized(data()), net(data()))


@pytest.mark.parametrize("outer", [Asking, AskingInPython], ids=["hybrid", "plain"])
@pytest.mark.parametrize("hybridized", [False, True], ids=["python", "hybridized"])
def test_blocks_around_see_the_container(outer: Any, hybridized: bool) -> None:
    child = Returning(named)
    if hybridized:
        child.hybridize()
    net = ready(outer(child))
    optimized = graphopt.optimize(net, record=False)
    for _ in range(3):
        same(optimized(data()), net(data()))


def test_results_of_a_sequential_are_its_last_blocks() -> None:
    net = nn.Sequential()
    net.add(nn.Dense(4, in_units=4), Returning(named))
    ready(net)
    same(graphopt.optimize(net)(data()), net(data()))


def test_named_tuples_of_numpy_arrays(as_numpy: None) -> None:
    class Numpy(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return Heads(F.np.tanh(x), (F.np.split(x, 2, axis=1), [x * 2]))

    net = Numpy()
    x = mx.np.array(np.random.default_rng(0).normal(size=(2, 4)))
    same(graphopt.optimize(net)(x), net(x))


def test_what_cannot_be_made_anew_is_told() -> None:
    optimized = graphopt.optimize(ready(Returning(subclass)))
    optimized(data())
    assert "only lists and tuples can be made anew, not Sized" in optimized.explain()
