"""Names that functions of Blocks read, set between calls, or in them."""

from __future__ import annotations

import functools
import random
import sys
import threading
import types
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.settings_support import Constant, Net, Scaled, check, data

mx = import_mxnet()
nn = mx.gluon.nn


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


DEFAULT = Constant(1.0)


def test_functions_in_lists_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listed(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.functions = {"scale": [scale]}

        def hybrid_forward(self, F: Any, x: Any, constant: Any = DEFAULT) -> Any:
            return self.functions["scale"][0](F.tanh(x)) * constant.by

    plain = Listed()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    monkeypatch.setattr(sys.modules[__name__], "BY", 2.0)
    check(fast, plain)
    DEFAULT.by = 3.0
    check(fast, plain)


class Raising(dict):  # type: ignore[type-arg]
    """As configurations whose keys are attributes; asked for another one it raises a KeyError."""

    __getattr__ = dict.__getitem__


CONFIGURATION = Raising(by=1.0)


def test_a_configuration_that_raises() -> None:
    class Configured(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * CONFIGURATION.by

    plain = Configured()
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0):
        CONFIGURATION["by"] = by
        check(fast, plain)
    assert fast._graphopt_entries()


@pytest.mark.parametrize("draw", [random.random, np.random.uniform])
def test_generators_that_names_lead_to(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawing(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * scale()

    monkeypatch.setattr(sys.modules[__name__], "scale", draw)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    fast = graphopt.optimize(Drawing())
    first, second = (fast(data()).asnumpy() for _ in range(2))
    ended.set()
    thread.join()
    assert np.abs(first - second).max() > 0
    assert "draws numbers in Python" in fast.explain()


def test_attributes_of_functions() -> None:
    def counted(x: Any) -> Any:
        counted.calls += 1  # type: ignore[attr-defined]
        return x * counted.calls  # type: ignore[attr-defined]

    class Counting(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return counted(F.tanh(x))

    counted.calls = 0  # type: ignore[attr-defined]
    fast = graphopt.optimize(Counting())
    for number in range(1, 4):
        np.testing.assert_allclose(fast(data()).asnumpy(), np.tanh(data().asnumpy()) * number, 1e-5)


def test_what_is_made_within_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Made:
        def __init__(self) -> None:
            self.by = BY

    class Making(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * Made().by * getattr(helpers, "BY")  # noqa: B009

    plain = Making()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    monkeypatch.setattr(sys.modules[__name__], "BY", 2.0)
    check(fast, plain)
    monkeypatch.setattr(helpers, "BY", 2.0)
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


def test_what_functions_import(monkeypatch: pytest.MonkeyPatch) -> None:
    class Importing(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            import tests_nn_imported
            from tests_nn_imported import ADDED

            return F.tanh(x) * tests_nn_imported.by() + ADDED

    imported = types.ModuleType("tests_nn_imported")
    exec("BY, ADDED = 1.0, 1.0\ndef by(): return BY", imported.__dict__)
    monkeypatch.setitem(sys.modules, "tests_nn_imported", imported)
    plain = Importing()
    fast = graphopt.optimize(plain)
    for name in ("BY", "ADDED"):
        check(fast, plain)
        monkeypatch.setattr(imported, name, 3.0)
    check(fast, plain)
    assert fast._graphopt_entries()


def test_dicts_that_arguments_are_where_none_is_given() -> None:
    class Scaling(mx.gluon.HybridBlock):
        def scale(self, x: Any, scales: dict[str, float] = {"by": 2.0}) -> Any:  # noqa: B006
            return x * scales["by"]

        def hybrid_forward(self, F: Any, x: Any, *, counts: list[int] = [0, 1]) -> Any:  # noqa: B006
            return self.scale(F.tanh(x)) + counts[0]

    class Counting(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any, calls: list[int] = []) -> Any:  # noqa: B006
            calls.append(0)
            return F.tanh(x) * len(calls)

    plain = Scaling()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    Scaling.scale.__defaults__[0]["by"] = 3.0  # type: ignore[index]
    check(fast, plain)
    Scaling.hybrid_forward.__kwdefaults__["counts"][0] = 4
    check(fast, plain)
    assert fast._graphopt_entries()
    fast = graphopt.optimize(Counting())
    for number in range(1, 5):
        np.testing.assert_allclose(fast(data()).asnumpy(), np.tanh(data().asnumpy()) * number, 1e-5)
    assert "sets 'calls' of test_dicts" in fast.explain()
