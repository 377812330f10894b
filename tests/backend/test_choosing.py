"""What choosing an engine computes is not computed again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import choosing
from graphopt.backend.choice import CACHED_OP, EXECUTOR_ONEDNN, KERNELS
from graphopt.backend.engines import ExecutorEngine
from graphopt.backend.sorting import Once
from graphopt.compat import import_mxnet
from graphopt.demo import models

mx = import_mxnet()


SIZE = {"layers": 1, "batch": 2, "length": 8, "width": 16, "heads": 2}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the executors that were called; the first of these is said to be the fastest."""
    made: list[str] = []
    run = ExecutorEngine.__call__

    def call(engine: ExecutorEngine, arrays: Sequence[Any]) -> list[Any]:
        made.append(engine.name)
        return run(engine, arrays)

    def race(engines: Iterable[str], *_: Any) -> dict[str, float]:
        return {name: 1.0 if name == EXECUTOR_ONEDNN + KERNELS else 2.0 for name in engines}

    monkeypatch.setattr(ExecutorEngine, "__call__", call)
    monkeypatch.setattr(choosing, "race", race)
    monkeypatch.setattr(choosing, "remembered", lambda _parts: None)
    return made


def test_what_trying_computed_is_returned(calls: list[str]) -> None:
    example = models.encoder(**SIZE)
    (arguments,) = example.calls
    fast = graphopt.optimize(example.net, mode="inference")
    first = fast(*arguments)
    assert calls.count(EXECUTOR_ONEDNN + KERNELS) == 1
    calls.clear()
    second = fast(*arguments)
    assert calls == [EXECUTOR_ONEDNN + KERNELS]
    np.testing.assert_array_equal(first.asnumpy(), second.asnumpy())


@pytest.mark.parametrize(("seconds", "is_long"), [(0.4, False), (0.6, True)])
def test_fewer_engines_are_tried_where_calls_take_long(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, seconds: float, is_long: bool
) -> None:
    tried, run_once = list[str](), choosing.run_once

    def slowly(engine: Any, known: Any) -> Once:
        tried.append(engine.name)
        return replace(run_once(engine, known), seconds=seconds)

    monkeypatch.setattr(choosing, "run_once", slowly)
    example = models.encoder(**SIZE)
    graphopt.optimize(example.net, mode="inference")(*example.calls[0])
    assert tried[0] == CACHED_OP
    assert calls.count(EXECUTOR_ONEDNN + KERNELS) == 1
    assert (CACHED_OP + KERNELS in tried) == (not is_long)
