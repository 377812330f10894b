"""Gradients of nets that are called several times at once, or whose weights others use as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd


def discriminator() -> Any:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, in_channels=1),
            nn.LeakyReLU(0.2),
            nn.BatchNorm(in_channels=4),
            nn.Flatten(),
            nn.Dense(1, in_units=144),
        )
    net.initialize()
    for seed, parameter in enumerate(net.collect_params().values()):
        values = np.random.default_rng(seed).uniform(0.1, 0.5, parameter.shape)
        parameter.set_data(mx.nd.array(values))
    return net


def images(seed: int) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=(4, 1, 8, 8)))


def once(net: Any, called: Any) -> Any:
    return (called(images(0)) ** 2).sum()


def twice(net: Any, called: Any) -> Any:
    return (called(images(0)) ** 2).sum() + (called(images(1)) ** 2).sum()


def with_decay(net: Any, called: Any) -> Any:
    weights = [p.data() for p in net.collect_params().values() if p.grad_req != "null"]
    return once(net, called) + mx.nd.add_n(*[(weight**2).sum() for weight in weights])


@pytest.mark.parametrize("options", [{}, {"record": True}, {"precise": True}], ids=str)
@pytest.mark.parametrize("first", [once, twice, with_decay])
@pytest.mark.parametrize("then", [once, twice, with_decay])
def test_steps_of_different_losses(
    first: Callable[..., Any], then: Callable[..., Any], options: dict[str, Any]
) -> None:
    plain, net = discriminator(), discriminator()
    fast = graphopt.optimize(net, **options)
    for loss in (first, first, then, then, first):
        for block, called in ((plain, plain), (net, fast)):
            with autograd.record():
                total = loss(block, called)
            total.backward()
        for name, parameter in plain.collect_params().items():
            of = net.collect_params()[name]
            found, want = (
                (p.data() if p.grad_req == "null" else p.grad()).asnumpy() for p in (of, parameter)
            )
            np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3 * abs(want).max())


class Loops(mx.gluon.HybridBlock):
    """Loops behind each other, whose steps cannot be one operator."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        for _ in range(4):
            x, _ = F.contrib.foreach(lambda row, states: (F.exp(-row * row), []), x, [])
        return x


@pytest.mark.parametrize("options", [{}, {"mode": "inference"}, {"passes": "none"}], ids=str)
def test_what_reads_the_results_of_loops_waits_for_them(options: dict[str, Any]) -> None:
    x = mx.nd.array(np.random.default_rng(0).uniform(size=(6, 3, 2, 4, 4)))
    want = Loops()(x).asnumpy()
    fast = graphopt.optimize(Loops(), **options)
    for _ in range(5):
        np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-5, atol=1e-6)
