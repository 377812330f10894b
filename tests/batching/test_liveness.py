"""What no result is computed from has no gradient in a batch, either: 0 * inf is no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, check, initialized

mx = import_mxnet()
nd = mx.nd


def normalised(net: Any, x: Any) -> Any:
    """A value that is read decides whether it is used."""
    hidden = net.dense(x)
    norm = hidden.norm(axis=1, keepdims=True)
    return hidden / norm if norm.asscalar() > 1e-6 else hidden


def normalised_by_a_root(net: Any, x: Any) -> Any:
    hidden = net.dense(x)
    norm = nd.sqrt((hidden * hidden).sum(axis=1, keepdims=True))
    return hidden / norm if norm.asscalar() > 1e-6 else hidden


def kept(net: Any, x: Any) -> Any:
    """Nothing is read; other samples use what this one does not."""
    hidden = net.dense(x)
    net.seen = nd.log(nd.sqrt(hidden * hidden))
    return hidden if x.asnumpy().sum() == 0 else net.seen * 2


def divided(net: Any, x: Any) -> Any:
    hidden = net.dense(x)
    ratio = 1 / hidden.sum(axis=1, keepdims=True)
    moved = hidden + ratio
    return nd.tanh(moved) if np.isfinite(moved.asnumpy()).all() else nd.tanh(hidden)


def overflowing(net: Any, x: Any) -> Any:
    """Where one of these is infinite, another result is taken."""
    hidden = net.dense(x) * 40
    found = [
        nd.exp(hidden),
        nd.expm1(hidden),
        nd.sinh(hidden),
        nd.cosh(hidden),
        3.0**hidden,
        hidden**30,
    ]
    total = nd.add_n(*found)
    return total if total.max().asscalar() < 1e30 else hidden


def multiplied(net: Any, x: Any) -> Any:
    hidden = net.dense(x)
    product = nd.prod(hidden, axis=1, keepdims=True)
    return hidden * product if product.asscalar() > 1e-6 else hidden


FUNCTIONS = [normalised, normalised_by_a_root, kept, divided, overflowing, multiplied]


def dense() -> Any:
    return mx.gluon.nn.Dense(2, in_units=2, use_bias=False, weight_initializer="one")


def samples() -> list[Any]:
    return [(nd.array([row]),) for row in ([1, 2], [0, 0], [3, 1], [0, 0])]


@pytest.mark.parametrize("scheduler", ["depth", "agenda"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=[f.__name__ for f in FUNCTIONS])
def test_gradients(function: Callable[..., Any], scheduler: str) -> None:
    net = initialized(Fn(function, dense=dense()))
    check(net, samples(), scheduler=scheduler)
    for debug in (True, False):
        batched = graphopt.batch(net, debug=debug)
        with mx.autograd.record():
            loss = batched(samples()).sum()
        loss.backward()
        assert np.isfinite(net.dense.weight.grad().asnumpy()).all()


@pytest.mark.parametrize("reads", [False, True])
def test_what_is_asked_for_later_has_its_gradient(reads: bool) -> None:
    def call(net: Any, x: Any) -> Any:
        hidden = net.dense(x)
        penalty = nd.sqrt((hidden * hidden).sum(axis=1, keepdims=True))
        net.penalties.append(penalty)
        return hidden * penalty if reads and penalty.asscalar() > 1e-6 else hidden

    net = initialized(Fn(call, dense=dense()))
    found = []
    for debug in (True, False):
        net.penalties = []
        with mx.autograd.record():
            loss = graphopt.batch(net, debug=debug)(samples()).sum()
            loss = loss + net.penalties[0].sum() + net.penalties[2].sum()
        loss.backward()
        found.append(net.dense.weight.grad().asnumpy())
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert np.isfinite(found[0]).all()
