"""Children with parameters (1, columns), which the bridge reads as vectors, in batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, check, initialized, rand

mx = import_mxnet()
nn = mx.gluon.nn


def added(F: Any, x: Any, row: Any, vector: Any) -> Any:
    return F.tanh(F.broadcast_add(F.broadcast_add(x, row), vector))


def multiplied(F: Any, x: Any, row: Any) -> Any:
    return F.broadcast_mul(row, F.tanh(x))


def sloped(F: Any, x: Any, row: Any) -> Any:
    return F.LeakyReLU(x, row, act_type="prelu")


def gated(F: Any, x: Any, row: Any, matrix: Any) -> Any:
    """By a matrix that has one row, too, and stays one."""
    gate = F.FullyConnected(x, matrix, no_bias=True, num_hidden=1)
    return F.broadcast_add(F.broadcast_mul(gate, x), row)


SHAPES = {"row": (1, 4), "vector": (4,), "matrix": (1, 4)}


class Layer(mx.gluon.HybridBlock):
    """A function of rows and of the parameters that it names."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        with self.name_scope():
            for name in list(inspect.signature(function).parameters)[2:]:
                setattr(self, name, self.params.get(name, shape=SHAPES[name]))

    def hybrid_forward(self, F: Any, x: Any, **params: Any) -> Any:
        return self.function(F, x, **params)


@pytest.mark.parametrize("is_hybrid", [False, True])
@pytest.mark.parametrize("function", [added, multiplied, sloped, gated])
def test_behind_a_layer(function: Callable[..., Any], is_hybrid: bool) -> None:
    net = initialized(
        Fn(lambda net, x: net.layer(net.front(x)), front=nn.Dense(4), layer=Layer(function))
    )
    if is_hybrid:
        net.layer.hybridize()
    batched = check(net, [(rand(1, 3),) for _ in range(3)])
    assert batched.statistics.groups == 2


@pytest.mark.parametrize("function", [added, gated])
def test_of_words(function: Callable[..., Any]) -> None:
    """What needs a word's row alone is computed ahead."""

    def forward(net: Any, words: Any) -> Any:
        state = mx.nd.zeros((1, 4))
        for word in words:
            state = mx.nd.tanh(net.layer(net.embed(word)) + net.state(state))
        return state

    children = {"embed": nn.Embedding(9, 4), "layer": Layer(function), "state": nn.Dense(4)}
    net = initialized(Fn(forward, **children))
    words = [[[n % 9] for n in range(start, start + 3)] for start in range(5)]
    check(net, [([mx.nd.array(word) for word in sentence],) for sentence in words])
