"""Running statistics that training writes: never read too early, never missed by inference."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.engines import CachedOpEngine
from graphopt.backend.step import StepEngine
from graphopt.compat import import_mxnet
from graphopt.nn.following import Following
from tests.tiers import one_of

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd

STEPS = 4


def small_cnn() -> Any:
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(8, 3, in_channels=3),
        nn.BatchNorm(in_channels=8),
        nn.Activation("relu"),
        nn.Conv2D(8, 3, in_channels=8),
        nn.BatchNorm(in_channels=8),
        nn.GlobalAvgPool2D(),
        nn.Dense(4, in_units=8),
    )
    net.initialize(mx.init.Xavier())
    return net


def images(seed: int = 0, size: int = 16) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(1, 2, (8, 3, size, size)))


def backward(net: Any, x: Any) -> None:
    with autograd.record():
        loss = (net(x) ** 2).mean()
    loss.backward()


def statistics(net: Any) -> list[np.ndarray[Any, Any]]:
    return [p.data().asnumpy() for n, p in net.collect_params().items() if "running" in n]


def without_a_step(fast: Any, net: Any, x: Any) -> None:
    backward(fast, x)


def at_a_rate_of_zero(fast: Any, net: Any, x: Any) -> None:
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0})
    backward(fast, x)
    trainer.step(1)


def by_a_train_step(fast: Any, net: Any, x: Any) -> None:
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0})
    graphopt.train_step(fast, mx.gluon.loss.L2Loss(), trainer)(x, mx.nd.zeros((8, 4)))


def by_mxnet(fast: Any, net: Any, x: Any) -> None:
    net.hybridize(static_alloc=True, static_shape=True)
    backward(net, x)
    net.hybridize(False)
    mx.nd.waitall()  # its engine is told of nothing


@pytest.mark.parametrize(
    ("options", "train"),
    one_of(
        3,
        itertools.product(
            [{}, {"memory": "1GB"}, {"record": True}],
            [without_a_step, at_a_rate_of_zero, by_a_train_step, by_mxnet],
        ),
    ),
)
def test_inference_sees_what_training_wrote(
    train: Callable[[Any, Any, Any], None], options: dict[str, Any]
) -> None:
    net, x = small_cnn(), images()
    fast = graphopt.optimize(net, **options)
    fast(x)
    for step in range(STEPS):
        train(fast, net, images(step))
        np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-5)
    for _ in range(2):
        np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-5)
    built = [entry.built for entry in fast._graphopt_entries() if entry.mode == "inference"]
    assert any(isinstance(each, Following) for each in built) or "memory" in options


@pytest.mark.parametrize("memory", [None, "1GB"])
def test_what_is_read_behind_backward_is_what_it_wrote(memory: str | None) -> None:
    net = small_cnn()
    fast = graphopt.optimize(net, memory=memory)
    backward(fast, images(size=96))
    for step in range(STEPS):
        backward(fast, images(step, size=96))
        early = statistics(net)
        mx.nd.waitall()
        for found, expected in zip(early, statistics(net), strict=True):
            np.testing.assert_array_equal(found, expected)
    (entry,) = fast._graphopt_entries()
    engine = entry.lowered.bound[0]
    assert isinstance(engine, StepEngine if memory else CachedOpEngine)


def test_what_is_saved_behind_a_step_is_what_it_wrote(tmp_path: Path) -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    for step in range(STEPS):
        backward(fast, images(step, size=96))
        trainer.step(1)
        fast.save_parameters(str(tmp_path / "params"))
        mx.nd.waitall()
        saved = mx.nd.load(str(tmp_path / "params"))
        for name, parameter in net._collect_params_with_prefix().items():
            np.testing.assert_array_equal(saved[name].asnumpy(), parameter.data().asnumpy())
