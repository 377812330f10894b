"""Races of engines that take as long as told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from graphopt.backend import race


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each engine was called; engines are pairs of a name and seconds."""
    found: Counter[str] = Counter()

    def seconds(engine: Any, _arrays: Any, times: int = 1) -> float:
        found[engine.name] += times
        return engine.seconds

    monkeypatch.setattr(race, "_seconds", seconds)
    return found


class Engine:
    inputs = ()

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds


def run(seconds: Mapping[str, float], first: Mapping[str, float]) -> dict[str, float]:
    engines = {name: Engine(name, took) for name, took in seconds.items()}
    return race.race(engines, {name: {} for name in engines}, first)


def test_short_calls_are_made_many_times(calls: Counter[str]) -> None:
    found = run({"a": 1e-4, "b": 1.1e-4}, {"a": 0.5, "b": 0.1})
    assert found == pytest.approx({"a": 0.1, "b": 0.11})
    assert calls["a"] >= 20


def test_short_calls_that_are_slow_once_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' weights are in the caches at first, and neighbours are busy now and then."""
    times = {"a": iter([1e-3, *[3e-4] * 200]), "b": iter([1.9e-3, *[7e-4] * 20, *[2e-4] * 200])}

    def seconds(engine: Any, _arrays: Any, _times: int = 1) -> float:
        return next(times[engine.name])

    monkeypatch.setattr(race, "_seconds", seconds)
    found = run({"a": 0, "b": 0}, {"a": 1.0, "b": 1.0})
    assert found == pytest.approx({"a": 0.3, "b": 0.2})


def test_calls_are_timed_waited_for_and_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that returns before it is done is as fast as the mean of both."""

    def seconds(engine: Any, _arrays: Any, times: int = 1) -> float:
        return engine.seconds / 2 if times > 1 else engine.seconds

    monkeypatch.setattr(race, "_seconds", seconds)
    found = run({"a": 4e-4, "b": 3e-4}, {"a": 1.0, "b": 1.0})
    assert found == pytest.approx({"a": 0.3, "b": 0.225})


def test_what_is_far_behind_drops_out(calls: Counter[str]) -> None:
    found = run({"a": 0.01, "b": 0.03, "c": 0.012}, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert found == pytest.approx({"a": 10, "b": 30, "c": 12})
    assert calls["b"] == 1
    assert calls["a"] == calls["c"] >= 4


def test_long_calls_are_made_twice(calls: Counter[str]) -> None:
    run({"a": 0.3, "b": 0.4, "c": 0.6}, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert calls == {"a": 2, "b": 2, "c": 1}


def test_of_very_long_calls_some_are_made_once(calls: Counter[str]) -> None:
    times = {"a": 3.0, "b": 2.9, "c": 2.0, "d": 2.5}
    found = run(times, {"a": 3.5, "b": 3.1, "c": 2.2, "d": 2.4})
    assert calls == {"c": 1, "d": 1}
    assert found == {"a": 3500, "b": 3100, "c": 2000, "d": 2400}


def test_long_first_calls_of_short_ones_say_little(calls: Counter[str]) -> None:
    """They bind."""
    times = {"a": 0.01, "b": 0.009, "c": 0.008, "d": 0.011}
    found = run(times, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    assert min(found, key=found.__getitem__) == "c"
    assert min(calls.values()) >= 2
