"""Steps of trainers with gradients that are given, by MXNet and optimized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()

SHAPES = ((7, 5), (33,), (150, 301), (1,))


def parameters(dtype: str = "float32", **more: Any) -> list[Any]:
    """Some of the shapes, with the same numbers in every call."""
    random = np.random.RandomState(0)
    found = []
    for number, shape in enumerate(SHAPES):
        parameter = mx.gluon.Parameter(f"p{number}_weight", shape=shape, dtype=dtype, **more)
        parameter.initialize()
        numbers = mx.nd.array(random.normal(size=shape), dtype=dtype)
        numbers.copyto(parameter.data().as_nd_ndarray())
        found.append(parameter)
    return found


def give_gradients(params: list[Any], step: int) -> None:
    """As a backward pass would."""
    random = np.random.RandomState(step + 1)
    for p in params:
        numbers = mx.nd.array(random.normal(size=p.shape), dtype=p.dtype)
        if p.grad_req != "null":
            numbers.copyto(p.list_grad()[0].as_nd_ndarray())
            p.list_data()[0]._fresh_grad = True


def train(params: list[Any], trainer: Any, steps: int = 4) -> list[np.ndarray]:
    """What the weights are after some steps."""
    for step in range(steps):
        give_gradients(params, step)
        trainer.step(4)
    return [p.data().asnumpy() for p in params]


def pair(make: Callable[[list[Any]], Any], dtype: str = "float32") -> tuple[Any, Any]:
    """Parameters and trainer by MXNet, and the same optimized."""
    plain, fast = parameters(dtype), parameters(dtype)
    return (plain, make(plain)), (fast, graphopt.optimize(make(fast), strict=True))


def assert_same(expected: list[np.ndarray], found: list[np.ndarray], tolerance: float) -> None:
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)
