"""Nets that draw in inference, called in other threads than that of the first call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.lower import lower
from graphopt.compat import import_mxnet
from graphopt.ir.parser import parse

mx = import_mxnet()
nn = mx.gluon.nn


def noisy_dense() -> Any:
    net = nn.HybridSequential()
    net.add(nn.HybridLambda(lambda F, x: x + F.random.uniform_like(x)), nn.Dense(4, in_units=3))
    return net


def noisy_convolution() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, in_channels=3), nn.Activation("relu"))
    net.add(nn.HybridLambda(lambda F, x: x * F.random.normal_like(x)), nn.Conv2D(4, 3))
    return net


def in_a_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize(
    ("make", "shape"), [(noisy_dense, (2, 3)), (noisy_convolution, (2, 3, 12, 12))]
)
@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_the_seed_of_the_calling_thread_counts(
    make: Callable[[], Any], shape: tuple[int, ...], mode: str
) -> None:
    net = make()
    net.initialize()
    x = mx.nd.random.uniform(-1, 1, shape)
    net(x)

    def seeded(called: Any) -> Any:
        mx.random.seed(5)
        return called(x).asnumpy()

    want = seeded(net)
    fast = graphopt.optimize(net, mode=mode)
    for run in (lambda work: work(), in_a_thread, in_a_thread, lambda work: work()):
        for _ in range(3):
            np.testing.assert_allclose(run(lambda: seeded(fast)), want, rtol=1e-4, atol=1e-5)


def test_a_cached_op_draws_from_the_generator_of_who_calls() -> None:
    graph = parse("""\
graph noisy(%x: f32[2,3]) {
  %near = tanh(%x) : f32[2,3]
  %noise = _random_normal_like(%near) : f32[2,3]
  %y = elemwise_add(%x, %noise) : f32[2,3]
  return %y
}
""")
    lowered = lower(graph, engine="CachedOp")
    x = mx.nd.ones((2, 3))

    def seeded() -> Any:
        mx.random.seed(5)
        return lowered(x)[0].asnumpy()

    want = seeded()
    for run in (in_a_thread, in_a_thread, lambda work: work()):
        np.testing.assert_allclose(run(seeded), want, rtol=1e-6)
