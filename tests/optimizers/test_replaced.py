"""Trainers whose optimizer is replaced after they were made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.optimizers.steps import assert_same, parameters, train

mx = import_mxnet()

#: Names of optimizers and their options.
REPLACED: list[tuple[str, str, dict[str, Any]]] = [
    ("sgd", "nag", {"momentum": 0.9}),
    ("sgd", "signum", {"momentum": 0.0}),
    ("adam", "nadam", {}),
    ("adam", "adam", {}),
    ("adagrad", "rmsprop", {}),
]
OPTIMIZERS = pytest.mark.parametrize(("first", "second", "options"), REPLACED)


def steps_around(
    first: str, second: str, options: dict[str, Any], optimize: Any, **more: Any
) -> tuple[list[np.ndarray], Any]:
    """What weights are after steps before and behind another optimizer; and the trainer."""
    params = parameters()
    trainer = optimize(mx.gluon.Trainer(params, first, {"learning_rate": 0.1} | options, **more))
    train(params, trainer, steps=2)
    by_number = dict(enumerate(params))
    rate = 0.01 if second == first else 0.1
    trainer._optimizer = mx.optimizer.create(
        second, param_dict=by_number, learning_rate=rate, **options
    )
    return train(params, trainer, steps=3), trainer


def as_it_is(trainer: Any) -> Any:
    return trainer


@OPTIMIZERS
def test_the_updater_keeps_the_optimizer(first: str, second: str, options: dict[str, Any]) -> None:
    want, _ = steps_around(first, second, options, as_it_is)
    got, fast = steps_around(first, second, options, graphopt.optimize)
    assert_same(want, got, 2e-6)
    assert "one kernel updates 4 of 4 weights" in fast.explain()
    assert fast.graphopt_state.plan() is fast.graphopt_state.plan()  # not made anew in every step


@OPTIMIZERS
@pytest.mark.parametrize("updates_there", [False, True])
def test_a_key_value_store_keeps_the_optimizer(
    first: str, second: str, options: dict[str, Any], updates_there: bool
) -> None:
    def steps(optimize: Any) -> list[np.ndarray]:
        more = {"kvstore": mx.kv.create("local"), "update_on_kvstore": updates_there}
        return steps_around(first, second, options, optimize, **more)[0]

    assert_same(steps(as_it_is), steps(graphopt.optimize), 2e-6)
