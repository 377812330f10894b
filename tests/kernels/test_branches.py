"""MXNet's cond and while_loop leave no gradient unwritten with the bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()


class Net(mx.gluon.HybridBlock):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        return self.f(F, x, y)


def of_computed(F: Any, x: Any, y: Any) -> Any:
    h = F.tanh(x)
    return F.contrib.cond(F.sum(h) > 0, lambda: h * 3, lambda: h * 5) + y


def of_others_in_each_branch(F: Any, x: Any, y: Any) -> Any:
    return F.contrib.cond(F.sum(x) > 0, lambda: F.tanh(x) * x, lambda: y * 5) + x * y


def without_a_step(F: Any, x: Any, y: Any) -> Any:
    h, g = F.tanh(x), F.sin(y)
    _, (_, last) = F.contrib.while_loop(
        cond=lambda i, a: i < 0,
        func=lambda i, a: ((), (i + 1, a * g)),
        loop_vars=(F.sum(x), h),
        max_iterations=4,
    )
    return last + g


def gradients(block: Any, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    given = [mx.nd.array(x), mx.nd.array(y)]
    for array in given:
        array.attach_grad()
    # What nobody writes is found in the memory that these leave.
    spoiled = [mx.nd.full(x.shape, 1e9) for _ in range(16)]
    mx.nd.waitall()
    del spoiled
    with mx.autograd.record():
        loss = block(*given).sum()
    loss.backward()
    return [array.grad.asnumpy() for array in given]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("f", [of_computed, of_others_in_each_branch, without_a_step])
def test_gradients(f: Callable[..., Any], static: bool) -> None:
    bridge.load(mx)
    plain, net = Net(f), Net(f)
    net.hybridize(static_alloc=static)
    rng = np.random.default_rng(0)
    for sign in (1, -1) * 4:
        x, y = sign * rng.uniform(0, 1, (4, 3)), rng.uniform(-1, 1, (4, 3))
        for got, want in zip(gradients(net, x, y), gradients(plain, x, y), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
