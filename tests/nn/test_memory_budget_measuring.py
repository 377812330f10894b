"""Operators are timed for a budget as if nothing had run: draws, and operators of users."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.backend.costs import measure_costs
from graphopt.backend.symbol import to_symbol
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import lift_symbol
from tests.nn.budgets import check, least, told

mx = import_mxnet()
nn = mx.gluon.nn
ROWS, WIDTH = 4000, 60


class Counts(mx.operator.CustomOp):
    """Twice its input."""

    calls = 0

    def forward(self, is_train, req, in_data, out_data, aux):
        Counts.calls += 1
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("graphopt_test_counts_in_budgets")
class CountsProp(mx.operator.CustomOpProp):
    """Registers it."""

    def create_operator(self, ctx, shapes, dtypes):
        return Counts()


class Between(mx.gluon.HybridBlock):
    """Layers, one of which has noise, or an operator of the user's."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        with self.name_scope():
            self.first = nn.Dense(WIDTH, in_units=16)
            self.second = nn.Dense(WIDTH, in_units=WIDTH)
            self.third = nn.Dense(WIDTH, in_units=WIDTH)
            self.last = nn.Dense(3, in_units=WIDTH)

    def hybrid_forward(self, F, x):
        h = F.tanh(self.first(x))
        if self._kind == "operator":
            h = F.Custom(h, op_type="graphopt_test_counts_in_budgets")
        elif self._kind == "loop":
            rows = F.zeros(shape=(1, WIDTH))
            noise, _ = F.contrib.foreach(
                lambda row, states: (row + F.random.normal(shape=(WIDTH,)), states),
                rows,
                [F.zeros(shape=(1,))],
            )
            h = F.broadcast_add(h, noise)
        else:
            h = h + F.random.normal(shape=(ROWS, WIDTH))
        return self.last(F.tanh(self.third(F.tanh(self.second(F.tanh(h))))))


@pytest.mark.parametrize("kind", ["noise", "loop", "operator"])
def test_a_budget_draws_no_numbers_and_calls_no_operators_of_users(kind: str) -> None:
    net = Between(kind)
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.uniform(shape=(ROWS, 16))
    fast = graphopt.optimize(net, memory=least(net, x))
    found = []
    net.hybridize()
    for which in (net, fast):
        mx.random.seed(7)
        Counts.calls = 0
        for _ in range(2):
            with mx.autograd.record():
                loss = (which(x) ** 2).sum()
            loss.backward()
        grads = [p.grad().asnumpy().copy() for p in net.collect_params().values()]
        drawn = mx.nd.random.uniform(shape=(2,)).asnumpy()
        found.append([loss.asnumpy(), *grads, drawn, np.array(Counts.calls)])
    assert "computed again" in told(fast)
    check((found[0], found[1]))
    assert Counts.calls == (2 if kind == "operator" else 0)


def test_all_others_are_timed() -> None:
    x = mx.sym.tanh(mx.sym.var("data"), name="before")
    x = mx.sym.Custom(x, op_type="graphopt_test_counts_in_budgets", name="own")
    x = mx.sym.Dropout(mx.sym.sin(x, name="behind"), name="dropped")
    graph = lift_symbol(mx.sym.Group([x, mx.sym.cos(x, name="last")]), {"data": (4, 5)})
    seconds = measure_costs(graph, to_symbol(graph), {"data": mx.nd.ones((4, 5))}, mx.cpu())
    assert {"before", "behind", "last"} <= seconds.keys()
    assert not {"own", "dropped"} & seconds.keys()


def test_nothing_else_is_there_to_be_timed() -> None:
    x = mx.sym.Dropout(mx.sym.var("data"), name="dropped")
    graph = lift_symbol(x, {"data": (4, 5)})
    assert not measure_costs(graph, to_symbol(graph), {"data": mx.nd.ones((4, 5))}, mx.cpu())
