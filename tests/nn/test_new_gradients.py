"""Gradients are those of the plain net, whatever arrays parameters get for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.tiers import one_of

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd


def small_cnn() -> Any:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, in_channels=3),
            nn.BatchNorm(in_channels=4),
            nn.Activation("relu"),
            nn.GlobalAvgPool2D(),
            nn.Dense(5, in_units=4),
        )
    net.initialize(mx.init.Xavier())
    for seed, parameter in enumerate(net.collect_params().values()):
        values = np.random.default_rng(seed).uniform(0.1, 1, parameter.shape)
        parameter.set_data(mx.nd.array(values))
    return net


IMAGES = mx.nd.array(np.random.default_rng(0).normal(size=(4, 3, 8, 8)))


def learned(net: Any) -> list[Any]:
    return [p for p in net.collect_params().values() if "running" not in p.name]


def step(net: Any) -> None:
    with autograd.record():
        loss = (net(IMAGES) ** 2).sum()
    loss.backward()


def request(net: Any, *kinds: str, only: int | None = None) -> None:
    for kind in kinds:
        for parameter in learned(net)[:only]:
            parameter.grad_req = kind


def initialize(net: Any, fast: Any) -> None:
    kept = {name: p.data().copy() for name, p in net.collect_params().items()}
    net.initialize(mx.init.Xavier(), force_reinit=True)
    for name, parameter in net.collect_params().items():
        parameter.set_data(kept[name])


def reset_ctx(net: Any, fast: Any) -> None:
    net.collect_params().reset_ctx(mx.cpu())


def add_and_write(net: Any, fast: Any) -> None:
    request(net, "add", "write")


def add(net: Any, fast: Any) -> None:
    request(net, "add")


def freeze_and_unfreeze(net: Any, fast: Any) -> None:
    request(net, "null")
    fast(IMAGES)
    request(net, "write")


def freeze_some_for_a_step(net: Any, fast: Any) -> None:
    request(net, "null", only=2)
    step(fast)
    request(net, "write", only=2)


WAYS = [{}, {"record": True}, {"memory": "1GB"}, {"passes": "none"}]
CHANGES = [initialize, reset_ctx, add_and_write, add, freeze_and_unfreeze, freeze_some_for_a_step]


@pytest.mark.parametrize(("change", "options"), one_of(3, itertools.product(CHANGES, WAYS)))
def test_new_arrays_for_gradients_are_written(
    change: Callable[[Any, Any], None], options: dict[str, Any]
) -> None:
    plain = small_cnn()
    net = small_cnn()
    fast = graphopt.optimize(net, **options)
    for block, called in ((plain, plain), (net, fast)):
        for _ in range(2):
            step(called)
        change(block, called)
        for _ in range(2):
            step(called)
    for found, expected in zip(learned(net), learned(plain), strict=True):
        np.testing.assert_allclose(
            found.grad().asnumpy(), expected.grad().asnumpy(), rtol=1e-3, atol=1e-4
        )


def test_restarts_of_a_net_learn_alike() -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    start = {name: p.data().copy() for name, p in net.collect_params().items()}
    ends = []
    for _ in range(3):
        net.initialize(force_reinit=True)
        for name, parameter in net.collect_params().items():
            parameter.set_data(start[name])
        for _ in range(5):
            with autograd.record():
                loss = (fast(IMAGES) ** 2).sum()
            loss.backward()
            trainer.step(1)
        ends.append(float(loss.asscalar()))
    np.testing.assert_allclose(ends, ends[0], rtol=1e-4)
