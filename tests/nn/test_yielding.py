"""Methods of plain Blocks that are generators yield the user's Blocks, whenever they run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class Yielding(gluon.Block):
    """Is taken child by child, and gives its children away one by one."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.a, self.b = (nn.Dense(2, in_units=2) for _ in range(2))
        self.layers = [self.a]

    def each(self) -> Any:
        yield from (self.a, self.b)

    def asks(self) -> Any:
        try:
            known = yield self.a
            yield known is self.b
        except KeyError as error:
            yield error.args, [self.b]
        finally:
            self.layers.append(self.b)
        return self.a

    def fails(self) -> Any:
        yield self.a
        raise ValueError("no more layers")

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Net(gluon.Block):
    """Has one as a child."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.child = Yielding()

    def each(self) -> Any:
        return self.child.each()

    def asks(self) -> Any:
        return self.child.asks()

    def fails(self) -> Any:
        return self.child.fails()

    def forward(self, x):
        return self.child(x)


def goes_through(net: Any, called: Any) -> Any:
    return [layer is own for layer, own in zip(called.each(), net.child.each(), strict=True)]


def sends(net: Any, called: Any) -> Any:
    made = called.asks()
    found = [next(made) is net.child.a, made.send(net.child.b)]
    with pytest.raises(StopIteration) as end:
        next(made)
    return [*found, end.value.value is net.child.a]


def throws(net: Any, called: Any) -> Any:
    made = called.asks()
    next(made)
    given, layers = made.throw(KeyError("unknown"))
    return given, layers[0] is net.child.b, [*made]


def closes(net: Any, called: Any) -> Any:
    made = called.asks()
    found = next(made) is net.child.a
    made.close()
    return found, [*made]


def fails(net: Any, called: Any) -> Any:
    made = called.fails()
    found = next(made) is net.child.a
    with pytest.raises(ValueError, match="no more layers"):
        next(made)
    return found


@pytest.mark.parametrize("record", [False, None])
@pytest.mark.parametrize("ask", [goes_through, sends, throws, closes, fails])
def test_generators_yield_the_users_blocks(ask: Any, record: bool | None) -> None:
    x, answers = mx.nd.array([[1, 2]]), []
    for is_plain in (True, False):
        net = Net()
        net.initialize(mx.init.One(), ctx=mx.cpu())
        called = net if is_plain else graphopt.optimize(net, record=record)
        np.testing.assert_allclose(called(x).asnumpy(), [[3, 3]], atol=1e-6)
        answers.append((ask(net, called), [layer is net.child.b for layer in net.child.layers]))
        expected = [[6, 6]] if len(net.child.layers) == 2 else [[3, 3]]
        np.testing.assert_allclose(called(x).asnumpy(), expected, atol=1e-6)
    assert answers[0] == answers[1]


class Lazy(gluon.Block):
    """Gives its layers away in what is read later."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.a, self.b = (nn.Dense(2, in_units=2) for _ in range(2))
        self.layers, self.named = [self.a, self.b], {"a": self.a, "b": self.b}

    @contextmanager
    def borrowed(self) -> Any:
        self.layers.append(self.a)
        yield self.b
        self.layers.pop()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def itself(layer: Any) -> Any:
    return layer


LAZY: dict[str, Any] = {
    "iter": lambda net: iter(net.layers),
    "map": lambda net: map(itself, net.layers),
    "zip": lambda net: zip(net.layers, net.named, strict=True),
    "reversed": lambda net: reversed(net.layers),
    "enumerate": lambda net: enumerate(net.layers),
    "values": lambda net: net.named.values(),
    "items": lambda net: net.named.items(),
}


def ready(cls: type, **methods: Any) -> tuple[Any, Any]:
    """A net with more methods, and it optimized and called."""
    net = type(cls.__name__, (cls,), methods)()
    net.initialize(mx.init.One())
    fast = graphopt.optimize(net, record=False)
    fast(mx.nd.ones((1, 2)))
    return net, fast


@pytest.mark.parametrize("how", LAZY)
def test_what_is_read_later_holds_the_users_blocks(how: str) -> None:
    net, fast = ready(Lazy, given=LAZY[how])
    got, want = list(fast.given()), list(net.given())
    assert len(got) == len(want) == 2
    for one, other in zip(got, want, strict=True):
        pairs = zip(one, other, strict=True) if isinstance(other, tuple) else [(one, other)]
        assert all(mine is theirs or mine == theirs for mine, theirs in pairs)


def test_contexts_hand_out_the_users_blocks() -> None:
    net, fast = ready(Lazy)
    with fast.borrowed() as layer:
        assert layer is net.b
        assert net.layers == [net.a, net.b, net.a]
    assert net.layers == [net.a, net.b]
