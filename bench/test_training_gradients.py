"""Training steps: gradients equal plain MXNet's, and what a step takes beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphopt
from bench import workloads
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.demo.checking import Arrays, relative_error, train, train_step
from graphopt.demo.models import Example

LARGEST_ERROR = 1e-4
#: How much farther from float64 than MXNet's gradients may fall: a few numbers at kinks decide.
LUCK = 1.5


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
    # Not on trial: the LSTM's net, which is split, is to be compared as it is split.
    net = graphopt.optimize(example.net, passes=workloads.unmeasured("training"), record=False)
    plain = example.as_plain()
    expected = train(example, plain)
    found = train(example, net)
    error = relative_error(expected, found)
    graphs = [entry.result.graph for entry in net._graphopt_entries()]
    counters(f"training/{name}", *graphs, frozen=False)
    # Beside a ReLU's kink gradients jump, MXNet's like ours; float64 tells what is right.
    nearness = {} if error <= LARGEST_ERROR else _from_float64(example, expected, found)
    assert not nearness or nearness["from float64"] <= LUCK * nearness["plain from float64"]
    contenders = {
        "graphopt": lambda: train_step(example, net),
        "plain": lambda: train_step(example, plain),
    }
    medians = race(benchmark, contenders, max(3, rounds // 2), quick)
    if medians:
        shown = figures(medians) | {"gradient error": error} | nearness
        targets = {} if nearness else {"gradient error": LARGEST_ERROR}
        record(Record("Training step, float32", name, shown, ratios(medians), targets))


def _from_float64(example: Example, plain: Arrays, found: Arrays) -> dict[str, float]:
    exact = workloads.in_float64(example, lambda wide: train(wide, wide.net))
    gradients = {name: array for name, array in exact.items() if name.startswith("gradient:")}
    return {
        "from float64": workloads.distance(gradients, found),
        "plain from float64": workloads.distance(gradients, plain),
    }
