"""Decorated classes mean what they did, in their own code, subclasses, copies and pickles."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import types
from typing import Any, Generic, TypeVar

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.nn.optimized import Optimized

mx = import_mxnet()
nn = mx.gluon.nn
T = TypeVar("T")


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)


def ready(net: Any) -> Any:
    net.initialize(mx.init.Normal(0.5))
    return net


def x() -> Any:
    return mx.nd.array(np.random.default_rng(0).normal(size=(2, 4)))


@graphopt.optimize
class Old(mx.gluon.HybridBlock):
    """As most code for MXNet is written."""

    def __init__(self, units: int = 3, **kwargs: Any) -> None:
        super(Old, self).__init__(**kwargs)  # noqa: UP008
        with self.name_scope():
            self.dense = nn.Dense(units)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        assert isinstance(self, Old)
        return F.tanh(self.dense(x))


@graphopt.optimize(record=False)
class OldPlain(mx.gluon.Block):
    """A Block whose forward is Python."""

    def __init__(self) -> None:
        super(OldPlain, self).__init__()  # noqa: UP008
        self.dense = nn.Dense(3)

    def forward(self, x: Any) -> Any:
        assert isinstance(self, OldPlain)
        return super(OldPlain, self).__call__ and self.twice(self.dense(x))  # noqa: UP008

    def twice(self, x: Any) -> Any:
        return x * 2


class Locked(mx.gluon.HybridBlock):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3)
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = threading.Lock()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.dense(x)


@graphopt.optimize
class DecoratedLocked(Locked):
    """The same, decorated."""


@pytest.mark.parametrize("cls", [Old, OldPlain])
def test_super_by_name(cls: Any) -> None:
    net = ready(cls())
    assert any(base is cls for base in type(net).__mro__[1:])
    assert cls.__mro__[1].__module__.startswith("mxnet")
    want = net.dense(x())
    same(net(x()), want.tanh() if cls is Old else want * 2)
    assert net.receipts()


def test_a_class_in_use_stays_as_it_is() -> None:
    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return x + 1

    fast = graphopt.optimize(Net)
    assert fast is not Net
    assert issubclass(fast, Net)
    assert type(Net()) is Net
    assert isinstance(fast(), Net)
    assert isinstance(fast(), Optimized)
    dense = graphopt.optimize(nn.Dense)
    assert type(nn.Dense(2)) is nn.Dense
    assert isinstance(dense(2), Optimized)

    class Sub(fast):  # type: ignore[misc, valid-type]
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return super().hybrid_forward(F, x) * 10

    same(Sub()(x()), (x() + 1) * 10)


@pytest.mark.parametrize("is_decorated", [False, True])
@pytest.mark.parametrize("kind", [mx.gluon.Block, mx.gluon.HybridBlock])
def test_subclasses_run_what_they_override(kind: Any, is_decorated: bool) -> None:
    @graphopt.optimize
    class Base(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3)

        def forward(self, x: Any) -> Any:
            return self.scale(self.dense(x)) if kind is mx.gluon.Block else super().forward(x)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.scale(self.dense(x))

        def scale(self, x: Any) -> Any:
            return x * 2

    class Sub(Base):
        def __init__(self) -> None:
            super().__init__()
            self.made = True

        def scale(self, x: Any) -> Any:
            return super().scale(x) * 100

    cls = graphopt.optimize(Sub) if is_decorated else Sub
    net = ready(cls())
    assert net.made
    want = net.dense(x()) * 200
    for made in (net, copy.deepcopy(net), graphopt.optimize(net)):
        same(made(x()), want)
        assert isinstance(made, Sub)
        with mx.autograd.record():
            found = made(x())
        same(found, want)
    same(net.scale(want), want * 200)


@pytest.mark.parametrize("make", [Old, OldPlain, DecoratedLocked])
def test_copies_and_pickles_of_instances(make: Any) -> None:
    net = ready(make())
    want = net(x())
    for _ in range(2):
        for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), copy.copy(net)):
            assert isinstance(made, make)
            assert isinstance(made, Optimized)
            same(made(x()), want)
        net = copy.deepcopy(graphopt.optimize(net))


@pytest.mark.parametrize("order", [("net", "fast"), ("fast", "net")])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda held: pickle.loads(pickle.dumps(held))])
def test_nets_and_views_are_copied_together(order: Any, copied: Any) -> None:
    net = ready(nn.Dense(2, in_units=4))
    both = {"net": net, "fast": graphopt.optimize(net)}
    held = types.SimpleNamespace(**{name: both[name] for name in order})
    found = copied(held)
    same(found.net(x()), net(x()))
    assert found.fast.__dict__ is found.net.__dict__
    assert found.net.weight.data() is not net.weight.data()
    assert found.net._children == {}
    found.fast.tag = 1
    assert found.net.tag == 1


def test_copies_of_views_have_attributes_of_their_own() -> None:
    net = ready(nn.Dense(2, in_units=4))
    twin = copy.copy(graphopt.optimize(net))
    twin.tag = 1
    assert not hasattr(net, "tag")
    assert twin.weight is net.weight
    same(twin(x()), net(x()))


def test_views_are_copied_by_the_protocol_of_the_users_class() -> None:
    fast = graphopt.optimize(ready(Locked()))
    want = fast(x())
    for made in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        same(made(x()), want)
        assert made.lock is not fast.lock


def test_del_of_a_block_is_called_once_and_last() -> None:
    ended: list[str] = []

    class Open(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3)
            self.note = "a"

        def forward(self, x: Any) -> Any:
            self.note = "b"
            return self.dense(x)

        def __del__(self) -> None:
            ended.append(self.note)

    net = ready(Open())
    fast = graphopt.optimize(net)
    for _ in range(4):
        same(fast(x()), net.dense(x()))
    fast.other = 1
    copied = copy.copy(fast)
    assert ended == []
    assert copied.note == "b"


def test_a_call_of_the_users_is_made() -> None:
    class Scaled(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3)

        def __call__(self, x: Any, factor: int = 2) -> Any:
            return super().__call__(x) * factor

        def forward(self, x: Any) -> Any:
            return self.dense(x)

    net = ready(Scaled())
    seen: list[Any] = []
    net.register_forward_hook(lambda block, args, out: seen.append(out))
    for options in ({}, {"record": True}, {"record": False}):
        fast = graphopt.optimize(net, **options)
        for _ in range(3):
            del seen[:]
            same(fast(x()), net.dense(x()) * 2)
            same(fast(x(), 5), net.dense(x()) * 5)
            assert len(seen) == 2


def test_a_reset_of_the_users_is_called() -> None:
    class Counting(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3)
            self.reset()

        def reset(self) -> None:
            self.state = 0

        def explain(self) -> str:
            return "mine"

        def forward(self, x: Any) -> Any:
            self.state = self.state + 1
            return self.dense(x) * self.state

    net = ready(Counting())
    fast = graphopt.optimize(net)
    want = net.dense(x())
    for _ in range(3):
        same(fast(x()), want)
        fast.reset()
    assert fast.explain() == "mine"


@pytest.mark.parametrize(
    "make", [mx.gluon.rnn.ZoneoutCell, mx.gluon.contrib.rnn.VariationalDropoutCell]
)
def test_cells_forget_their_states(make: Any) -> None:
    cell = ready(make(mx.gluon.rnn.LSTMCell(4, input_size=4)))
    fast = graphopt.optimize(cell)
    inputs = [x() for _ in range(3)]
    want = cell.unroll(3, inputs, merge_outputs=True)[0]
    for _ in range(2):
        same(fast.unroll(3, inputs, merge_outputs=True)[0], want)


def test_a_block_that_asks_an_optimized_one_for_attributes() -> None:
    class Delegating(mx.gluon.Block):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            if "inner" not in self.__dict__:
                raise AttributeError(name)
            return getattr(self.inner, name)

        def forward(self, x: Any) -> Any:
            return self.inner(x) * 10

    inner = graphopt.optimize(ready(nn.Dense(3)))
    want = inner(x()) * 10
    same(graphopt.optimize(Delegating(inner))(x()), want)


def test_views_are_no_subclasses_that_a_registry_hears_of() -> None:
    heard: list[str] = []

    class Base(mx.gluon.HybridBlock):
        def __init_subclass__(cls, name: str, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            heard.append(name)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return x + 1

    class Named(Base, name="a"):
        pass

    @graphopt.optimize
    class Decorated(Base, name="b"):
        pass

    class Derived(Decorated, name="c"):
        pass

    fast = graphopt.optimize(Named)
    for net in (graphopt.optimize(Named()), Decorated(), Derived(), fast()):
        same(net(x()), x() + 1)
    assert heard == ["a", "b", "c"]

    class Last(fast, name="d"):  # type: ignore[misc, valid-type]
        pass

    assert heard[-1] == "d"


def test_generic_classes_and_those_with_new() -> None:
    @graphopt.optimize
    class Net(mx.gluon.HybridBlock, Generic[T]):
        made = 0

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            Net.made += 1
            return super().__new__(cls)

        def __init__(self, units: int) -> None:
            super().__init__()
            self.units = units

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return x * self.units

    assert Net[int]
    net = Net(3)
    assert Net.made == 1
    same(net(x()), x() * 3)
    assert net.receipts()


def test_methods_that_are_replaced_later() -> None:
    @graphopt.optimize
    class Net(mx.gluon.Block):
        def forward(self, x: Any) -> Any:
            return self.scale(x)

        def scale(self, x: Any) -> Any:
            return x * 2

    assert type(Net()) is type(Net())
    same(Net().scale(x()), x() * 2)
    Net.scale = lambda self, x: x * 3  # as reloading does
    same(Net().scale(x()), x() * 3)


def test_functions_of_classes() -> None:
    class Zoo:
        @graphopt.optimize
        @staticmethod
        def dense(units: int) -> Any:
            return nn.Dense(units)

        @graphopt.optimize
        @classmethod
        def wide(cls) -> Any:
            return nn.Dense(9)

        def own(self) -> Any:
            return nn.Dense(5)

    made = Zoo.dense(3), Zoo().dense(3), Zoo.wide(), graphopt.optimize(Zoo().own)()
    assert all(isinstance(net, Optimized) for net in made)


def test_a_module_that_is_run_again() -> None:
    code = (
        "import graphopt, mxnet as mx\n"
        "@graphopt.optimize\n"
        "class Net(mx.gluon.HybridBlock):\n"
        "    def __init__(self):\n"
        "        super(Net, self).__init__()\n"
        "    def hybrid_forward(self, F, x):\n"
        "        return x + 1\n"
    )
    module = types.ModuleType("graphopt_test_cells")
    sys.modules[module.__name__] = module
    try:
        for _ in range(2):
            exec(code, vars(module))
            net = module.Net()
            same(net(x()), x() + 1)
            assert type(pickle.loads(pickle.dumps(net))).__name__ == "Net"
    finally:
        del sys.modules[module.__name__]
