"""How long trials take is told, and nothing is remembered: of ways to call a Block, and graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from graphopt.nn import any_size, ways


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """What is remembered lasts as long as a test."""
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(ways, "remembered", kept.get)
    monkeypatch.setattr(ways, "remember", kept.__setitem__)
    return kept


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, float]], list[str]]:
    """Have calls take as long as told, by their way; gives a list of those that were timed."""

    def use(times: Mapping[str, float]) -> list[str]:
        timed: list[str] = []

        def note(self: ways.Ways, way: str, _start: float) -> None:
            timed.append(way)
            self.best_ms[way] = times[way]

        monkeypatch.setattr(ways.Ways, "_note", note)
        return timed

    return use


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs for any size are tried at once, and found to be faster than MXNet."""

    def in_turns(ways: Mapping[str, Any], _arrays: Sequence[Any]) -> dict[str, float]:
        return {name: 1 - at / 10 for at, name in enumerate(ways)}

    monkeypatch.setattr(any_size, "_in_turns", in_turns)
    monkeypatch.setattr(any_size, "CALLS_OF_A_TRIAL", 0)
