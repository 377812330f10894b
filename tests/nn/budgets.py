"""Nets that are trained within a budget, and what is asked of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError
from graphopt.memory.sizes import parse_size
from graphopt.passes import PIPELINES

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd

AS_IN_MXNET = PIPELINES["training"].replace("select-convolution,", "")


def deep(layers: int = 6, dropout: float = 0.0) -> Any:
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(layers):
            net.add(nn.Conv2D(12, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
            if dropout:
                net.add(nn.Dropout(dropout))
        net.add(nn.GlobalAvgPool2D(), nn.Dense(5))
    net.initialize(mx.init.Xavier())
    return net


def image(batch: int = 8, seed: int = 0) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=(batch, 3, 32, 32)))


def pools(net: Any, ctx: Any = None) -> Any:
    return net.graphopt_state.compiled._memory.pools(ctx or mx.cpu())


def told(net: Any) -> str:
    found = re.search(r"memory: (.*)", net.explain())
    assert found is not None
    return found.group(1)


def least(net: Any, images: Any = None) -> int:
    """Bytes of the smallest budget."""
    with pytest.raises(BudgetError, match="the least is") as caught, autograd.record():
        graphopt.optimize(net, memory=1000)(image() if images is None else images)
    text = re.search(r"the least is ([\d.]+ \w+)", str(caught.value))
    assert text is not None
    return parse_size(text.group(1))


def both(net: Any, run: Any, budget: Any = None) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What ``run`` finds with memory for all, and within a budget.

    Convolutions are MXNet's in both: which are faster is measured, each rounds otherwise, and a
    relu that is 0 in one net only changes gradients by a thousandth.
    """
    net(image())
    fast = graphopt.optimize(net, memory=budget or least(net), passes=AS_IN_MXNET)
    start = {name: p.data().copy() for name, p in net.collect_params().items()}
    found = []
    for which in (net, graphopt.optimize(net, memory="4GB", passes=AS_IN_MXNET), fast):
        for name, p in net.collect_params().items():
            p.set_data(start[name])
            p.zero_grad()
        results = [array.asnumpy().copy() for array in run(which)]
        params = net.collect_params().values()
        results += [p.grad().asnumpy().copy() for p in params if p.grad_req != "null"]
        results += [p.data().asnumpy().copy() for p in params]
        found.append(results)
    assert "computed again" in told(fast)
    plain, whole, within = found
    near((plain, whole))
    return whole, within


def near(found: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
    """As much as MXNet's BatchNorm leaves of a gradient: it sums up thousands of float32."""
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=5e-3 * max(1.0, abs(want).max()))


def check(found: tuple[list[np.ndarray], list[np.ndarray]]) -> None:
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * max(1.0, abs(want).max()))


def small() -> Any:
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Dense(16), nn.Activation("tanh"), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    return net


class Tuned(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Only the last layer learns, so what is before it needs no memory in backward."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.last = nn.Dense(8, in_units=6144)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        large = [F.tile(x * (n + 1), reps=(1, 8)) for n in range(6)]
        sums = [F.sum(F.exp(value), axis=1, keepdims=True) for value in large]
        parts = [F.slice_axis(value, axis=1, begin=0, end=1024) for value in large]
        wide = [F.tile(value, reps=(1, 1024)) for value in sums]
        whole = F.concat(*map(F.elemwise_mul, parts, wide), dim=1)
        return self.last(F.tanh(whole * 1e-6))
