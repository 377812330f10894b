"""Objects that Blocks hold, and what these hold, set between calls."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.nn.optimized import HASTY_CHANGES
from graphopt.nn.settings import settings_read
from tests.nn.settings_support import Constant, check, data

mx = import_mxnet()
nn = mx.gluon.nn


def test_a_namespace_is_followed() -> None:
    told = SimpleNamespace(by=1.0)
    plain = Told(told)
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0):
        told.by = by
        check(fast, plain)


def check_followed(plain: Any, told: Any) -> None:
    """A net reads ``told.by``; it stays compiled whole."""
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0):
        told.by = by
        check(fast, plain)
    assert fast._graphopt_entries()


class Told(mx.gluon.HybridBlock):
    """Scales by what it is told."""

    def __init__(self, told: Any) -> None:
        super().__init__()
        self.told = told

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.tanh(x) * self.told.by


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


@dataclasses.dataclass(slots=True)
class Slotted:
    """Has no dict."""

    by: float


@dataclasses.dataclass(slots=True)
class HalfSlotted(Constant):
    """Has a dict besides."""

    by: float


class Empty:
    """Has nothing."""

    __slots__ = ()


class Sub(SimpleNamespace):
    """A namespace of the user's."""


class Frozen(dict):  # type: ignore[type-arg]
    """Refuses to be written into."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError


class Within(dict):  # type: ignore[type-arg]
    """Has an attribute besides its items."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by


class Attributes(dict):  # type: ignore[type-arg]
    """As EasyDict and CfgNode."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


KINDS = [Constant, Configuration, Attributes, Slotted, HalfSlotted, Sub, Within]


@pytest.mark.parametrize("kind", KINDS)
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


class Keeping(mx.gluon.HybridBlock):
    """Leaves an array in an object, and in a list of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = Constant(1.0)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        self.kept.state = F.tanh(x)
        KEPT.append(self.kept.state)
        return self.kept.state * 2


KEPT: list[Any] = []


@pytest.mark.parametrize("before", [None, mx.nd.zeros(1)])
def test_arrays_that_objects_keep(before: Any) -> None:
    KEPT.clear()
    plain, own = Keeping(), Keeping()
    plain.kept.state = own.kept.state = before
    fast = graphopt.optimize(own)
    for number in range(3):
        check(fast, plain)
        assert len(KEPT) == 2 * number + 2
        assert isinstance(own.kept.state, mx.nd.NDArray)
    assert "keeps an array as" in fast.explain()


MODULE = types.ModuleType("tests_nn_told")


class Class:
    """Settings that a class has."""

    by = 1.0


@pytest.mark.parametrize(
    "kind", [Class, types.ModuleType("tests_nn_told")], ids=["class", "module"]
)
def test_classes_and_modules_as_attributes(kind: Any) -> None:
    kind.by = 1.0
    check_followed(Told(kind), kind)


def test_objects_of_methods_and_of_parts_of_functions() -> None:
    class Schedule(Constant):
        def value(self, times: float = 1.0) -> float:
            return self.by * times

    class Called(Told):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * self.told()

    schedule = Schedule(1.0)
    for told in (schedule.value, functools.partial(schedule.value, 2.0)):
        check_followed(Called(told), schedule)


def test_names_that_gluon_has_for_blocks() -> None:
    class Private(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.told = Constant(1.0)
            self.told._params, self.told._counter = 1.0, 1.0

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * self.told._params * self.told._counter

    plain = Private()
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0):
        plain.told._params = plain.told._counter = by
        check(fast, plain)


def test_a_dict_of_a_class_of_pythons() -> None:
    class Looked(Told):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * self.told["by"]

    plain = Looked(UserDict(by=1.0))
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0):
        plain.told["by"] = by
        check(fast, plain)


@pytest.mark.filterwarnings("ignore:.*unregistered container")
def test_a_layer_that_is_no_child() -> None:
    class Beside(Told):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.told[0](x)

    plain = Beside([Told(Constant(1.0))])
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0):
        plain.told[0].told.by = by
        check(fast, plain)


def test_what_did_not_change_is_not_put_back() -> None:
    class Counting(Told):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            self.told["calls"] += 1
            return F.tanh(x) * self.told["frozen"]["by"]

    plain, own = (Counting({"calls": 0, "frozen": Frozen(by=2.0)}) for _ in range(2))
    fast = graphopt.optimize(own)
    for _ in range(3):
        check(fast, plain)
    assert own.told == plain.told


def test_a_counter_of_a_name_that_mxnets_cells_have() -> None:
    class Counting(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self._counter = 0

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            self._counter += 1
            return F.tanh(x) * self._counter

    plain, own = Counting(), Counting()
    fast = graphopt.optimize(own)
    for _ in range(3):
        check(fast, plain)
    assert own._counter == plain._counter


def test_an_object_that_has_no_attributes() -> None:
    class Holding(Told):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * float(self.told is None)

    plain = Holding(Empty())
    check(graphopt.optimize(plain), plain)


def test_what_cannot_be_looked_at() -> None:
    class Odd(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            raise RuntimeError("no length")

    class Holding(Told):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * float(self.told is None)

    plain = Holding(Odd())
    fast = graphopt.optimize(plain)
    check(fast, plain)
    assert "reads what cannot be looked at: RuntimeError: no length" in fast.explain()
    plain = Holding(np.ma.masked)
    check(graphopt.optimize(plain, strict=True), plain)


def test_equal_values_that_are_set_anew() -> None:
    fast = graphopt.optimize(Told(Constant(1.0)))
    for _ in range(4 * HASTY_CHANGES):
        fast.told.by = float("2.5")
        fast(data())
    assert fast._graphopt_entries()


def test_a_list_with_an_array() -> None:
    class Mixed(Told):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * self.told[0]

    plain = Mixed([1.0, mx.nd.ones(1)])
    fast = graphopt.optimize(plain)
    check(fast, plain)
    plain.told[0] = 2.0
    check(fast, plain)
    plain.told[1] = mx.nd.zeros(1)
    check(fast, plain)
    assert fast._graphopt_entries()


def test_objects_of_libraries_are_not_looked_at() -> None:
    graph = networkx.Graph()
    block = Told(graph)
    before = settings_read(block)
    graph.number = 1
    assert before.are_same()
    block.told = networkx.Graph()
    assert before.changed() == ["'told' of Told"]
