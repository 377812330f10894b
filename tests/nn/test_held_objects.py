"""Objects that Blocks hold, and what these hold, set between calls."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import networkx
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.nn.settings import settings_read
from tests.nn.settings_support import Constant, check

mx = import_mxnet()
nn = mx.gluon.nn


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
