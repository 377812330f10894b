"""Optimized trainers of parameters that are given twice, or that are elsewhere than before."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from tests.optimizers.steps import assert_same, give_gradients, parameters, train

mx = import_mxnet()


def of_both_halves() -> tuple[list[Any], Any]:
    """Parameters of an encoder and a decoder, which share one, and a trainer of both lists."""
    params = parameters()
    return params, mx.gluon.Trainer(params[:3] + params[1:], "adam", {"learning_rate": 0.1})


@pytest.mark.parametrize("ignoring", [False, True])
def test_a_parameter_that_is_given_twice(ignoring: bool) -> None:
    """MXNet has used its gradient when it comes to it again."""
    found: list[list[np.ndarray]] = []
    for optimize in (lambda trainer: trainer, graphopt.optimize):
        params, trainer = of_both_halves()
        trainer = optimize(trainer)
        for step in range(3):
            give_gradients(params, step)
            with nullcontext() if ignoring else pytest.raises(UserWarning, match="p1_weight"):
                trainer.step(4, ignore_stale_grad=ignoring)
        found.append([p.data().asnumpy() for p in params])
    assert "given twice" in trainer.explain()
    assert_same(found[0], found[1], 2e-6)


def test_a_parameter_that_is_given_twice_has_no_kernel() -> None:
    params, trainer = of_both_halves()
    give_gradients(params, 0)
    with pytest.raises(UnsupportedError, match="given twice"):
        graphopt.optimize(trainer, strict=True).step(4)


def test_a_frozen_parameter_may_be_given_twice() -> None:
    params, trainer = of_both_halves()
    for p in params[1:3]:
        p.grad_req = "null"
    give_gradients(params, 0)
    before = params[1].data().asnumpy()
    graphopt.optimize(trainer, strict=True).step(4)
    np.testing.assert_allclose(params[1].data().asnumpy(), before, atol=0)


def later_elsewhere(params: list[Any], trainer: Any, *places: Any) -> list[np.ndarray]:
    """What the weights are after steps here, and then with each parameter in one of the places."""
    train(params, trainer, steps=3)
    for at, p in enumerate(params):
        p.reset_ctx(places[at % len(places)])
    return train(params, trainer, steps=2)


@pytest.mark.parametrize("numbers", [(1,), (1, 0), (0, 1)])
def test_parameters_that_are_elsewhere_later(numbers: tuple[int, ...]) -> None:
    """Adam's steps are counted anew there."""
    places = [*map(mx.cpu, numbers)]
    plain, fast = parameters(), parameters()
    trainer = mx.gluon.Trainer(plain, "adam", {"learning_rate": 0.1})
    view = graphopt.optimize(mx.gluon.Trainer(fast, "adam", {"learning_rate": 0.1}))
    expected = later_elsewhere(plain, trainer, *places)
    assert_same(expected, later_elsewhere(fast, view, *places), 2e-6)
    assert view.optimizer.num_update == trainer.optimizer.num_update
    told = "one kernel updates 4 of 4" if len(numbers) == 1 else "they are on cpu(0), cpu(1)"
    assert told in view.explain()


def test_a_parameter_in_several_places_later() -> None:
    """MXNet asks for new gradients in all of them."""
    for optimize in (lambda trainer: trainer, graphopt.optimize):
        params = parameters()
        trainer = optimize(mx.gluon.Trainer(params, "sgd"))
        params[1].reset_ctx([mx.cpu(0), mx.cpu(1)])
        give_gradients(params, 0)
        with pytest.raises(UserWarning, match="p1_weight"):
            trainer.step(4)
