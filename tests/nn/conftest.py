"""Trials of the ways to call a Block: how long each takes is told, nothing is remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from graphopt.nn import ways


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
