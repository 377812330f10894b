"""Trainers whose optimizer, or a method of it, is replaced after they were made."""

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


METHODS: dict[str, Any] = {
    "_get_lr": lambda own: lambda index: 0.1 * own(index),
    "_get_wd": lambda own: lambda index: 0.1,
    "_get_lrs": lambda own: lambda indices: [0.1 * rate for rate in own(indices)],
    "_get_wds": lambda own: lambda indices: [0.1 for _ in indices],
    "_update_impl": lambda own: lambda *args, **kwargs: None,
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad", "lars", "adadelta"])
def test_methods_of_one_optimizer(name: str, method: str) -> None:
    found = []
    for optimize in (as_it_is, graphopt.optimize):
        params = parameters()
        optimizer = mx.optimizer.create(name, learning_rate=0.1, wd=0.01)
        if hasattr(optimizer, method):
            setattr(optimizer, method, METHODS[method](getattr(optimizer, method)))
        found.append(train(params, optimize(mx.gluon.Trainer(params, optimizer))))
    assert_same(found[0], found[1], 5e-6)
