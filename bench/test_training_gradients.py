"""Training steps: gradients equal plain MXNet's, and what a step takes beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphopt
from bench import workloads
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.demo.checking import relative_error, train, train_step

LARGEST_ERROR = 1e-4


@pytest.mark.parametrize("name", workloads.TRAINED)
def test_training_gradients(
    name: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    example = workloads.TRAINED[name]()
    net = graphopt.optimize(example.net, passes=workloads.unmeasured("training"))
    plain = example.as_plain()
    expected = train(example, plain)
    error = relative_error(expected, train(example, net))
    graphs = [entry.result.graph for entry in net._graphopt_entries()]
    counters(f"training/{name}", *graphs, frozen=False)
    assert error <= LARGEST_ERROR
    contenders = {
        "graphopt": lambda: train_step(example, net),
        "plain": lambda: train_step(example, plain),
    }
    medians = race(benchmark, contenders, max(3, rounds // 2), quick)
    if medians:
        shown = figures(medians) | {"gradient error": error}
        targets = {"gradient error": LARGEST_ERROR}
        record(Record("Training step, float32", name, shown, ratios(medians), targets))
