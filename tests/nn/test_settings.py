"""Attributes that Python of Blocks reads, set between calls, or in them."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.nn.optimized import CALLS_OF_A_SETTING, HASTY_CHANGES
from graphopt.nn.settings import settings_read

mx = import_mxnet()
nn = mx.gluon.nn


class Scaled(mx.gluon.HybridBlock):
    """Scales by an attribute, which its class has at first."""

    by: Any = 1.0

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        by = self.by
        while isinstance(by, (list, dict)):
            by = by[0]
        return F.tanh(x * (by(2.0) if callable(by) else float(by)))


class Net(mx.gluon.HybridBlock):
    """Has one further in."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.inner = nn.HybridSequential(prefix="inner_")
            self.inner.add(Scaled(prefix="scaled_"))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(self.inner(x) + 1)


def data() -> Any:
    return mx.nd.array(np.linspace(-1, 1, 6).reshape(2, 3))


def check(fast: Any, plain: Any) -> None:
    found, want = fast(data()).asnumpy(), plain(data()).asnumpy()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        [2.0, 3.0],
        [np.float32(2), np.float32(3)],
        [[2.0], [3.0]],
        [{0: [2.0]}, {0: [3.0]}],
        [lambda x: x, lambda x: x * x],
        [2.0, [3.0], np.ones(())],
    ],
    ids=["numbers", "numpy", "lists", "dicts", "functions", "kinds"],
)
def test_a_value_that_is_set_is_followed(values: list[Any]) -> None:
    plain = Net()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    for value in values:
        plain.inner[0].by = value
        check(fast, plain)
        check(fast, plain)
    assert not fast.graphopt_state.reason


def test_a_list_that_is_written_into_is_followed() -> None:
    plain = Net()
    plain.inner[0].by = [2.0]
    fast = graphopt.optimize(plain)
    check(fast, plain)
    plain.inner[0].by[0] = 3.0
    check(fast, plain)


def test_a_namespace_is_followed() -> None:
    told = SimpleNamespace(by=1.0)
    plain = Told(told)
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0):
        told.by = by
        check(fast, plain)


class Told(mx.gluon.HybridBlock):
    """Scales by what it is told."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self.told = told

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.tanh(x) * self.told.by


class Constant:
    """How to scale, of a class of the user's."""

    default = 1.0

    def __init__(self, by: float) -> None:
        self.by = by


@dataclasses.dataclass
class Configuration:
    """The same, compared by value."""

    by: float
    parts: list[Constant] = dataclasses.field(default_factory=list)


class Twice(Constant):
    """Another way to scale, with attributes of the same names and values."""

    @property
    def by(self) -> float:
        return 2 * self._by

    @by.setter
    def by(self, value: float) -> None:
        self._by = value


class Attributes(dict):  # type: ignore[type-arg]
    """As EasyDict and CfgNode."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Constant, Configuration, Attributes])
def test_what_an_object_holds_is_followed(kind: Any) -> None:
    told = kind(by=1.0)
    plain = nn.HybridSequential()
    plain.add(Told(told), Told(told))
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0):
        told.by = by
        check(fast, plain)
        check(fast, plain)
    assert fast._graphopt_entries()


def test_other_objects_are_followed() -> None:
    plain = Told(Configuration(1.0))
    fast = graphopt.optimize(plain)
    check(fast, plain)
    plain.told = Configuration(1.0)  # equal, and set otherwise afterwards
    check(fast, plain)
    for told in (plain.told, Constant(3.0), Twice(3.0)):
        plain.told = told
        told.by = 5.0
        check(fast, plain)
    assert fast._graphopt_entries()


def test_objects_of_objects_are_followed() -> None:
    class Deep(Told):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * self.told.parts[0].by

    plain = Deep(Configuration(1.0, [Constant(1.0)]))
    plain.told.parts[0].around = plain.told  # a cycle
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0):
        plain.told.parts[0].by = by
        check(fast, plain)


def test_objects_of_libraries_are_not_looked_at() -> None:
    graph = networkx.Graph()
    block = Told(graph)
    before = settings_read(block)
    graph.number = 1
    assert before.are_same()
    block.told = networkx.Graph()
    assert before.changed() == ["'told' of Told"]


def test_an_attribute_that_is_taken_away_is_followed() -> None:
    plain = Net()
    plain.inner[0].by = 2.0
    fast = graphopt.optimize(plain)
    check(fast, plain)
    del plain.inner[0].by
    check(fast, plain)


def test_rates_of_mxnets_layers_are_followed() -> None:
    plain = nn.HybridSequential()
    plain.add(nn.Dropout(0.5))
    fast = graphopt.optimize(plain)
    for rate in (0.5, 0.1, 0.9):
        plain[0]._rate = rate
        with mx.autograd.record():
            zeros = (fast(mx.nd.ones((100, 100))) == 0).mean().asscalar()
        assert abs(zeros - rate) < 0.05


def test_one_that_changes_all_along_is_not_compiled_in() -> None:
    plain = Net()
    fast = graphopt.optimize(plain)
    for number in range(2 * HASTY_CHANGES + 2):
        plain.inner[0].by = float(number)
        check(fast, plain)
    assert "'by' of Scaled changes from call to call" in fast.explain()


def test_one_that_changes_now_and_then_is() -> None:
    plain = Net()
    fast = graphopt.optimize(plain)
    for number in range(2 * HASTY_CHANGES):
        plain.inner[0].by = float(number)
        for _ in range(CALLS_OF_A_SETTING + 1):
            fast(data())
        check(fast, plain)
        assert fast._graphopt_entries()


def test_hybridized_nets_keep_them_as_in_mxnet() -> None:
    plain = Net()
    plain.hybridize()
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0, 3.0):
        plain.inner[0].by = by
        check(fast, plain)


def counting(change: Callable[[Any], None]) -> Any:
    class Counting(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__(prefix="counting_")
            self.count = 0

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            change(self)
            return F.tanh(x) * self.count

    return Counting()


def counted(block: Any) -> None:
    block.count += 1


def counted_once(block: Any) -> None:
    block.count = 7


def test_what_every_call_sets_is_set_in_every_call() -> None:
    plain, net = counting(counted), counting(counted)
    fast = graphopt.optimize(net)
    for _ in range(6):
        check(fast, plain)
    assert net.count == plain.count == 6
    assert "sets 'count' of Counting in every call" in fast.explain()
    with pytest.raises(UnsupportedError, match="sets 'count' of Counting in every call"):
        graphopt.optimize(counting(counted), strict=True)(data())


BY = 1.0
CALLS = 0


def scale(x: Any) -> Any:
    return x * BY


class Global(mx.gluon.HybridBlock):
    """Reads names of its module, through a function of it, and of another module."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return scale(F.tanh(x)) * helpers.BY * Constant.default + CALLS


helpers = types.ModuleType("tests_nn_helpers")
helpers.BY = 1.0  # type: ignore[attr-defined]


def test_names_of_modules_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Global()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    monkeypatch.setattr(sys.modules[__name__], "BY", 2.0)
    check(fast, plain)
    monkeypatch.setattr(sys.modules[__name__], "scale", lambda x: x * x)
    check(fast, plain)
    monkeypatch.setattr(helpers, "BY", 3.0)
    check(fast, plain)
    monkeypatch.setattr(Constant, "default", 4.0)
    check(fast, plain)
    assert fast._graphopt_entries()
    check(graphopt.optimize(plain), plain)


def test_variables_of_enclosing_functions_are_followed() -> None:
    by = 2.0

    def scaled(x: Any) -> Any:
        return x * by

    class Within(mx.gluon.HybridBlock):
        @property
        def scale(self) -> float:
            return by

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return scaled(F.tanh(x)) * self.scale

    plain = Within()
    fast = graphopt.optimize(plain)
    for value in (2.0, 3.0):
        by = value
        check(fast, plain)
        check(fast, plain)
    assert fast._graphopt_entries()


def test_variables_that_calls_set() -> None:
    calls = 0

    class Counted(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            nonlocal calls
            calls += 1
            return F.tanh(x) * calls

    fast = graphopt.optimize(Counted())
    for number in range(1, 5):
        np.testing.assert_allclose(fast(data()).asnumpy(), np.tanh(data().asnumpy()) * number, 1e-5)
    assert "sets 'calls' around" in fast.explain()


@pytest.mark.parametrize("make", [lambda f: f, lambda f: functools.partial(f)], ids=["own", "part"])
def test_functions_that_layers_hold(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held = make(lambda F, x: F.tanh(x) * BY)
    held.__name__ = "held"
    plain = nn.HybridLambda(held)
    fast = graphopt.optimize(plain)
    check(fast, plain)
    monkeypatch.setattr(sys.modules[__name__], "BY", 2.0)
    check(fast, plain)


def test_names_of_modules_that_calls_set(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            global CALLS
            CALLS += 1
            return F.tanh(x) * CALLS

    monkeypatch.setattr(sys.modules[__name__], "CALLS", 0)
    fast = graphopt.optimize(Counted())
    for number in range(1, 5):
        np.testing.assert_allclose(fast(data()).asnumpy(), np.tanh(data().asnumpy()) * number, 1e-5)
    assert "sets 'CALLS' of module" in fast.explain()


def test_attributes_of_classes_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Net()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    monkeypatch.setattr(Scaled, "by", 3.0)
    check(fast, plain)
    monkeypatch.setattr(Scaled, "hybrid_forward", lambda self, F, x: F.sin(x))
    check(fast, plain)


def test_what_a_first_call_sets_is_compiled_in() -> None:
    plain, net = counting(counted_once), counting(counted_once)
    fast = graphopt.optimize(net)
    for _ in range(4):
        check(fast, plain)
    assert net.count == 7
    assert fast._graphopt_entries()


def test_children_of_a_plain_block_are_followed() -> None:
    class Setting(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x: Any, by: float) -> Any:
            self.scaled.by = by
            return self.scaled(x)

    plain = Setting()
    for options in ({}, {"record": False}, {"record": True}):
        fast = graphopt.optimize(plain, **options)
        for number in range(40):
            by = (1.0, 2.0, 1.0, 3.0)[number % 4]
            found, want = fast(data(), by).asnumpy(), plain(data(), by).asnumpy()
            np.testing.assert_allclose(found, want, rtol=1e-5)


def test_what_is_restored() -> None:
    block, held = Scaled(), [1, {2: 3}]
    block.by, block.other = held, "a"
    block.object = held_object = Constant(1.0)
    before = settings_read(block)
    held[1][2], block.new = 4, 5
    del block.other
    assert before.changed() == ["'by' of Scaled", "'new' of Scaled", "'other' of Scaled"]
    held_object.by = 2.0
    before.restore()
    assert held_object.by == 1.0
    assert block.by is held
    assert (held, block.other) == ([1, {2: 3}], "a")
    assert not hasattr(block, "new")
    assert before.are_same()


class Once(mx.gluon.HybridBlock):
    """Does in its first call what it does not in others."""

    ready = False

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        if not self.ready:
            self.ready = True
            return x * 7
        return F.tanh(x) * 2


class Carrying(mx.gluon.HybridBlock):
    """Takes what the call before has left."""

    scale: Any = None

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        by, self.scale = self.scale or 1.0, 3.0
        return F.tanh(x) * by


@pytest.mark.parametrize("kind", [Once, Carrying])
def test_what_only_a_first_call_does_is_done_in_it(kind: Any) -> None:
    plain, own = kind(), kind()
    fast = graphopt.optimize(own)
    for _ in range(3):
        for _ in range(3):
            check(fast, plain)
            assert vars(own).get("scale") == vars(plain).get("scale")
        assert fast._graphopt_entries()
        for block in (plain, own):
            block.ready, block.scale = False, None


def test_layers_in_lists_are_followed() -> None:
    class Listed(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Activation("tanh"), nn.Activation("relu")
            self.order, self.path = [self.one, self.two], {"last": self.one}

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            for layer in self.order:
                x = layer(x - 0.1)
            return self.path["last"](x)

    plain = Listed()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    plain.order.reverse()
    check(fast, plain)
    plain.path["last"] = plain.two
    check(fast, plain)
    plain.order = []
    check(fast, plain)


def test_a_long_list_that_calls_append_to() -> None:
    class History(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.history = [0] * 200

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            self.history.append(0)
            return F.tanh(x) * len(self.history)

    plain, own = History(), History()
    fast = graphopt.optimize(own)
    for _ in range(4):
        check(fast, plain)
    assert len(own.history) == len(plain.history)


def test_a_schedule_with_planned_memory() -> None:
    plain = nn.HybridSequential()
    plain.add(nn.Dense(4, in_units=3), Scaled())
    plain.initialize()
    fast = graphopt.optimize(plain, memory="10MB")
    for number in range(2 * HASTY_CHANGES + 2):
        plain[1].by = float(number)
        with mx.autograd.record():
            found = fast(data())
        found.backward()
        np.testing.assert_allclose(found.asnumpy(), plain(data()).asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("units", [3, 400])
def test_steps_follow_them(units: int) -> None:
    def losses(*, optimized: bool) -> list[float]:
        mx.random.seed(2)
        net, loss = nn.HybridSequential(prefix="n_"), mx.gluon.loss.L2Loss()
        with net.name_scope():
            net.add(nn.Dense(units, in_units=3), Scaled(), nn.Dense(3, in_units=units))
        net.initialize(mx.init.Normal(0.3))
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.001})
        step = graphopt.train_step(net, loss, trainer) if optimized else None
        found = []
        for number in range(12):
            net[1].by = 1.0 + number // 3
            if step is None:
                with mx.autograd.record():
                    error = loss(net(data()), data() * 2)
                error.backward()
                trainer.step(2)
            else:
                error = step(data(), data() * 2)
            found.append(error.mean().asscalar())
        return found

    np.testing.assert_allclose(losses(optimized=True), losses(optimized=False), rtol=1e-4)
