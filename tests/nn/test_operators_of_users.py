"""Operators of users, which may count their calls, and of which nobody knows what they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


@pytest.fixture(autouse=True)
def sizes_are_compiled() -> None:
    """Not here."""


class Counts(mx.operator.CustomOp):
    """Twice its input; it counts its calls in a state, as running statistics do."""

    calls = 0

    def forward(self, is_train, req, in_data, out_data, aux):
        Counts.calls += 1
        self.assign(out_data[0], req[0], in_data[0] * 2)
        aux[0][:] = aux[0] + 1


@mx.operator.register("graphopt_test_counts")
class CountsProp(mx.operator.CustomOpProp):
    """Registers it."""

    def list_auxiliary_states(self):
        return ["seen"]

    def infer_shape(self, shapes):
        return shapes, shapes, [(1,)]

    def create_operator(self, ctx, shapes, dtypes):
        return Counts()


class Counted(mx.gluon.HybridBlock):
    """A net with such an operator."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.first = mx.gluon.nn.Dense(16, in_units=8)
            self.last = mx.gluon.nn.Dense(3, in_units=16)
            self.seen = self.params.get(
                "seen", shape=(1,), init="zeros", grad_req="null", differentiable=False
            )

    def hybrid_forward(self, F, x, seen):
        h = F.Custom(self.first(x), seen, op_type="graphopt_test_counts")
        return self.last(F.relu(h))


@pytest.mark.parametrize("options", [{}, {"mode": "inference"}])
def test_they_run_once_a_call(options: dict[str, Any]) -> None:
    net = Counted()
    net.initialize()
    fast = graphopt.optimize(net, **options)
    Counts.calls = 0
    sizes = (4, 4, *range(5, 16))  # some are compiled for, and what is for any size runs others
    for size in sizes:
        x = mx.nd.ones((size, 8))
        found = fast(x).asnumpy()
        plain = net.last(mx.nd.relu(net.first(x) * 2))
        np.testing.assert_allclose(found, plain.asnumpy(), rtol=1e-4, atol=1e-6)
    assert Counts.calls == net.seen.data().asscalar() == len(sizes)
