"""Optimized trainers of parameters that are given twice, or that are elsewhere than before."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from tests.optimizers.steps import assert_same, give_gradients, parameters

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
