"""What optimizers keep for weights: when it is made, and of what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.optimizers.steps import assert_same, give_gradients

mx = import_mxnet()

OPTIMIZERS = ["sgd", "nag", "adam", "adagrad", "adamax", "nadam", "rmsprop", "ftrl", "lamb"]


@pytest.fixture
def numpy_interface() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def weights(*dtypes: str) -> list[Any]:
    found = []
    for at, dtype in enumerate(dtypes):
        p = mx.gluon.Parameter(f"p{at}_weight", shape=(4,), dtype=dtype)
        p.initialize(mx.init.One())
        found.append(p)
    return found


def states(trainer: Any) -> dict[int, list[Any]]:
    """Arrays that the optimizer keeps, by the number of the weight."""

    def flat(state: Any) -> list[Any]:
        if isinstance(state, (tuple, list)):
            return [array for part in state for array in flat(part)]
        return [] if state is None else [state]

    return {at: flat(state) for at, state in sorted(trainer._updaters[0].states.items())}


def of_both(params: list[Any], name: str, **options: Any) -> Any:
    return mx.gluon.Trainer(params, name, {"learning_rate": 0.1, "multi_precision": True} | options)


@pytest.mark.usefixtures("numpy_interface")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_of_numpy_in_half_precision(name: str) -> None:
    found = []
    for optimize in (lambda trainer: trainer, graphopt.optimize):
        params = weights("float16", "float32")
        trainer = optimize(of_both(params, name))
        for step in range(3):
            give_gradients(params, step)
            trainer.step(1)
        kept = [array for arrays in states(trainer).values() for array in arrays]
        assert {*map(type, kept)} <= {mx.nd.NDArray}
        found.append([a.asnumpy() for a in (*(p.data() for p in params), *kept)])
    assert_same(found[0], found[1], 2e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_master_copies_are_of_what_weights_are_when_they_learn_first(name: str) -> None:
    found = []
    for optimize in (lambda trainer: trainer, graphopt.optimize):
        params = weights("float16", "float32")
        trainer = optimize(of_both(params, name))
        for step in range(5):
            give_gradients(params, step)
            if step == 3:
                assert 0 not in states(trainer)
                params[0].set_data(mx.nd.array([5, 6, 7, 8], dtype="float16"))
            params[0].list_data()[0]._fresh_grad = step >= 3
            trainer.step(1, ignore_stale_grad=True)
        found.append([p.data().asnumpy() for p in params])
    assert_same(found[0], found[1], 2e-3)


def test_states_that_are_of_another_optimizer_stay_as_they_are() -> None:
    """As MXNet makes none where there are some, even if they do not fit; kernels ask for more."""
    params = weights("float32")
    trainer = graphopt.optimize(of_both(params, "sgd"))
    give_gradients(params, 0)
    trainer.step(1)
    assert "one kernel updates 1 of 1" in trainer.explain()
    trainer._updaters[0].states[0] = mx.nd.zeros((4,))
    give_gradients(params, 1)
    trainer.step(1)
    assert "keeps 1 arrays for it, not 0" in trainer.explain()
