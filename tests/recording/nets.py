"""Plain Blocks, and what recording them must give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


def block(forward: Callable[..., Any], **children: Any) -> Any:
    """A plain Block with that forward."""

    class Net(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            for name, child in children.items():
                setattr(self, name, child)

    Net.forward = forward
    net = Net()
    net.initialize(mx.init.Normal(0.5))
    return net


def array(*shape: int) -> Any:
    return mx.nd.array(np.random.default_rng(0).standard_normal(shape))


def values(found: Any) -> list[np.ndarray]:
    if isinstance(found, (list, tuple)):
        return [a for item in found for a in values(item)]
    return [found.asnumpy()]


def assert_same(net: Any, *args: Any, **options: Any) -> Any:
    """The recorded net returns what the net returns, twice; gives the optimized net."""
    optimized = graphopt.optimize(net, record=True, **options)
    for _ in range(2):
        wanted, found = values(net(*args)), values(optimized(*args))
        assert len(wanted) == len(found)
        for one, other in zip(wanted, found, strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    return optimized


def programs(optimized: Any) -> Any:
    return optimized.graphopt_state.recorded.programs
