"""What choosing an engine computes is not computed again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import choosing
from graphopt.backend.choice import EXECUTOR_ONEDNN, KERNELS
from graphopt.backend.engines import ExecutorEngine
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
