"""Children that return what they were given: gradients go through both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, flat, initialized, rand, same

mx = import_mxnet()
nn = mx.gluon.nn


def before(layer: Any, _F: Any, x: Any) -> Any:  # noqa: N803
    return x, layer.conv(x)


def behind(layer: Any, _F: Any, x: Any) -> Any:  # noqa: N803
    return layer.conv(x), [x]


def twice(layer: Any, F: Any, x: Any) -> Any:
    return x, x, F.tanh(layer.conv(x))


def nothing_else(_layer: Any, _F: Any, x: Any) -> Any:  # noqa: N803
    return x


class Layer(mx.gluon.HybridBlock):
    """A function of a convolution, which the bridge's programs on rows do not have."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        with self.name_scope():
            self.conv = nn.Conv1D(4, 1, in_channels=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.function(self, F, x)


def of_arguments(net: Any, x: Any) -> Any:
    return net.layer(x)


def of_results(net: Any, x: Any) -> Any:
    return net.layer(net.front(x))


def of_its_own(net: Any, x: Any) -> Any:
    return net.layer(flat(net.layer(net.front(x)))[0])


def gradients(batched: Any, samples: list[Any], net: Any) -> tuple[Any, list[Any]]:
    """The results, and the gradients of parameters and of what samples were given."""
    params = list(net.collect_params().values())
    for param in params:
        param.zero_grad()
    for (x,) in samples:
        x.attach_grad()
    with mx.autograd.record():
        found = batched(samples)
        loss = mx.nd.add_n(*[(each * each).sum() for each in flat(found)])
    loss.backward()
    grads = [param.grad() for param in params] + [x.grad for (x,) in samples]
    return found, [grad.asnumpy() for grad in grads]


def check(net: Any, samples: list[Any], batched: Any) -> None:
    """Batched as one by one."""
    expected, plain_grads = gradients(graphopt.batch(net, debug=True), samples, net)
    found, grads = gradients(batched, samples, net)
    same(found, expected, 1e-5)
    for mine, theirs in zip(grads, plain_grads, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use", [of_arguments, of_results, of_its_own])
@pytest.mark.parametrize("function", [before, behind, twice, nothing_else])
def test_gradients(function: Callable[..., Any], use: Callable[..., Any]) -> None:
    net = initialized(Fn(use, front=nn.Conv1D(4, 1, in_channels=4), layer=Layer(function)))
    check(net, [(rand(1, 4, 3, seed=n),) for n in range(3)], graphopt.batch(net))


@pytest.mark.parametrize("function", [before, behind])
def test_gradients_on_ever_new_lengths(function: Callable[..., Any]) -> None:
    """Call by call, in what serves all lengths."""

    def use(net: Any, x: Any) -> Any:
        found = flat(net.layer(net.front(x)))
        return [each.sum(axis=2) for each in found]

    net = initialized(Fn(use, front=nn.Conv1D(4, 1, in_channels=4), layer=Layer(function)))
    batched = graphopt.batch(net)
    check(net, [(rand(1, 4, n, seed=n),) for n in range(1, 14)], batched)
    assert "call by call on shapes that are new" in batched.explain()
