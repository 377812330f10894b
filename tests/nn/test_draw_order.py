"""What a net draws is drawn in MXNet's order, whatever passes leave of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


class Drawing(mx.gluon.HybridBlock):
    """Combines what it gets, uniform and normal numbers."""

    def __init__(self, combine: Callable[[Any, Any, Any, Any], Any]) -> None:
        super().__init__(prefix="net_")
        self.combine = combine

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        uniform = F.random.uniform(-1, 1, shape=(3, 4))
        normal = F.random.normal(shape=(3, 4))
        return self.combine(F, x * 2, uniform, normal)


def steps(F: Any, h: Any, u: Any, n: Any) -> Any:
    def step(x: Any, state: Any) -> Any:
        return x * state, state + F.random.normal(shape=(4,))

    outputs, _ = F.contrib.foreach(step, h, F.zeros((4,)))
    return u + outputs * n


COMBINATIONS = {
    "a sum": lambda F, h, u, n: u + n * h,
    "its parts too": lambda F, h, u, n: [h, u, u + n * h],
    "the later one first": lambda F, h, u, n: [u * h + n, n],
    "functions": lambda F, h, u, n: h.exp() * u.tanh() + n,
    "rows": lambda F, h, u, n: F.softmax((h + u).tanh() + n * h),
    "in a loop": steps,
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_seed_gives_the_numbers_that_mxnet_draws(name: str, *, training: bool) -> None:
    def drawn(net: Any) -> list[Any]:
        found = []
        for seed in range(4):
            mx.random.seed(seed)
            with mx.autograd.record() if training else mx.autograd.pause():
                made = net(mx.nd.ones((3, 4)))
            made = made if isinstance(made, list) else [made]
            found += [array.asnumpy() for array in made]
            found.append(mx.nd.random.uniform(shape=2).asnumpy())
        return found

    plain = Drawing(COMBINATIONS[name])
    plain.hybridize()
    fast = graphopt.optimize(Drawing(COMBINATIONS[name]))
    for got, expected in zip(drawn(fast), drawn(plain), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
