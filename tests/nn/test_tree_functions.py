"""Functions of graphopt.nn.Recurrence that read other things than the cells of test_trees.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import nn
from graphopt.compat import import_mxnet
from tests.nn.test_trees import (
    COLUMNS,
    STRUCTURES,
    assert_close,
    noise,
    one_by_one,
    parents_in,
    structure,
)

mx = import_mxnet()
gluon = mx.gluon


class Stretched(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Rows and sums of rows, with vectors, rows and a matrix of one row among its parameters."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.vector = self.params.get("vector", shape=(COLUMNS,))
            self.row = self.params.get("row", shape=(1, COLUMNS))
            self.one = self.params.get("one", shape=(1, 1))
            self.matrix = self.params.get("matrix", shape=(1, COLUMNS))

    def hybrid_forward(
        self, F: Any, x: Any, other: Any, vector: Any, row: Any, one: Any, matrix: Any
    ) -> Any:
        gate = F.FullyConnected(other, matrix, no_bias=True, num_hidden=1)
        own = F.broadcast_mul(row, F.broadcast_add(x, one))
        summed = F.broadcast_add(F.broadcast_add(own + other, vector), row)
        return F.tanh(F.broadcast_mul(summed, gate))


def gradients(run: Any, net: Any, x: Any) -> list[Any]:
    """Values, and gradients of a weighted sum of them."""
    params = list(net.collect_params().values())
    for param in params:
        param.zero_grad()
    x.attach_grad()
    with mx.autograd.record():
        made = run(x)
        loss = (made * noise(*made.shape, seed=3)).sum()
    loss.backward()
    return [a.asnumpy() for a in (made, x.grad, *(param.grad() for param in params))]


@pytest.mark.parametrize("how", ["as it is", "hybridized", "optimized"])
def test_rows_are_vectors_to_kernels(how: str) -> None:
    message, update = Stretched(), Stretched()
    net = nn.Recurrence(message, "sum", update)
    net.initialize(mx.init.Uniform(1))
    edges = STRUCTURES["diamonds"]
    x = noise(8, COLUMNS)

    def plain(x: Any) -> Any:
        (found,) = one_by_one(message, update, ["sum"], [COLUMNS], x, edges, 1)
        return found

    theirs = gradients(plain, net, x)
    given = structure(edges)
    layer = graphopt.optimize(net) if how == "optimized" else net
    if how == "hybridized":
        net.hybridize()
    for _ in range(2):
        mine = gradients(lambda x: layer(x, given), net, x)
        assert_close(mine, theirs, "float32")
    np.testing.assert_allclose(layer(x, given).asnumpy(), theirs[0], atol=1e-5)


def test_parameters_of_a_message_by_name_are_no_states() -> None:
    class Message(Stretched):
        def hybrid_forward(self, F: Any, x: Any, other: Any, **params: Any) -> Any:
            return super().hybrid_forward(F, x, other, **params)

    message = Message()
    net = nn.Recurrence(message, "sum", lambda F, x, other: F.tanh(x + other))
    net.initialize(mx.init.Uniform(1))
    x, edges = noise(8, COLUMNS), STRUCTURES["diamonds"]
    (theirs,) = one_by_one(
        message, lambda x, other: mx.nd.tanh(x + other), ["sum"], [COLUMNS], x, edges, 1
    )
    np.testing.assert_allclose(net(x, structure(edges)).asnumpy(), theirs.asnumpy(), atol=1e-5)


@pytest.mark.parametrize("reads_words", [False, True])
@pytest.mark.parametrize("is_tree", [False, True])
def test_functions_need_not_read_rows(is_tree: bool, reads_words: bool) -> None:
    """States grow with how high a node stands, here."""
    edges = [(0, 1), (1, 3), (2, 3), (5, 4)] if is_tree else STRUCTURES["diamonds"]
    words = mx.nd.array([1, 1, 0, 1, 1, 0, 0, 1], dtype="int32")
    embedding = gluon.nn.Embedding(2, COLUMNS) if reads_words else None
    net = nn.Recurrence(
        lambda F, x, state: state,
        "max",
        lambda F, x, height: F.tanh(height) + 0.5,
        embedding=embedding,
    )
    net.initialize()
    x = noise(8, COLUMNS)
    x.attach_grad()
    given = parents_in(edges, 8) if is_tree else structure(edges)
    with mx.autograd.record():
        made = net(words if reads_words else x, given)
    made.backward()
    (theirs,) = one_by_one(
        lambda x, state: state,
        lambda x, height: mx.nd.tanh(height) + 0.5,
        ["max"],
        [COLUMNS],
        x,
        edges,
        1,
    )
    np.testing.assert_allclose(made.asnumpy(), theirs.asnumpy(), atol=1e-6)
    grad = embedding.weight.grad() if reads_words else x.grad
    assert not grad.asnumpy().any()
