"""Outputs that are inputs, as a state that a decoder's step hands on: the caller's own arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


class Step(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Reads a memory, and hands it on."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(4, in_units=4)

    def hybrid_forward(self, F: Any, x: Any, memory: Any) -> Any:
        return F.broadcast_add(self.dense(x), F.sum(memory)), memory


@pytest.mark.parametrize("options", [{}, {"mode": "inference"}, {"passes": "none"}])
def test_inference_hands_on_the_array(options: dict[str, Any]) -> None:
    net = Step()
    net.initialize()
    fast = graphopt.optimize(net, **options)
    x = mx.nd.ones((2, 4))
    for rows in (2, 2, 3, 5, 6, 2):
        memory = mx.nd.ones((rows, 4))
        _, state = fast(x, memory)
        memory[:] = 7
        y, state = fast(x, state)
        assert state.asnumpy()[0, 0] == 7
        np.testing.assert_allclose(y.asnumpy(), net(x, memory)[0].asnumpy(), rtol=1e-5)
        state[:] = -1
        assert memory.asnumpy()[0, 0] == -1


class Edges(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Sums over edges by an operator that is not MXNet's to call."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(1, 4), init="ones")

    def hybrid_forward(self, F: Any, x: Any, edges: Any, weight: Any) -> Any:
        messages = F.exp(F.tanh(F.take(F.broadcast_mul(x, weight), edges)) * 0.5) * 3
        add = F._internal._backward_gather_nd
        return add(messages, F.expand_dims(edges, 0), shape=(5, 4))


def test_graphs_with_unknown_operators_have_kernels() -> None:
    net = Edges()
    net.initialize()
    fast = graphopt.optimize(net)
    x, edges = mx.nd.random.normal(shape=(5, 4)), mx.nd.array([0, 1, 1, 4, 3, 0, 2])
    for _ in range(3):
        np.testing.assert_allclose(fast(x, edges).asnumpy(), net(x, edges).asnumpy(), rtol=1e-5)
    assert "runs on: CachedOp + kernels" in fast.explain()
