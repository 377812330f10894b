"""HybridBlocks that keep arrays on themselves: MXNet runs them anew unless hybridized."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn


class Cell(mx.gluon.HybridBlock):
    """Adds what it returned the last time."""

    def __init__(self) -> None:
        super().__init__(prefix="cell_")
        self.state = None
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = self.dense(x)
        if self.state is not None:
            y = y + self.state
        self.state = F.tanh(y)
        return y


class InLists(Cell):
    """Keeps all that it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[Any]] = {"all": []}

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = self.dense(x)
        for other in self.seen["all"][-2:]:
            y = y + other * 0.5
        self.seen["all"].append(y)
        return y


class Watched(Cell):
    """Keeps its weights of attention for its user."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        self.state = F.softmax(self.dense(x))
        return self.state * x


class Outer(mx.gluon.Block):
    def __init__(self, cell: Any) -> None:
        super().__init__(prefix="outer_")
        self.cell = cell

    def forward(self, x: Any) -> Any:
        return self.cell(x) * 2


@pytest.mark.parametrize(
    ("kind", "inside", "record"),
    one_of(5, itertools.product([Cell, InLists, Watched], [False, True], [None, True, False])),
)
def test_what_is_kept_is_kept_in_each_call(
    kind: type, record: bool | None, *, inside: bool
) -> None:
    def called(*, optimized: bool) -> list[Any]:
        mx.random.seed(1)
        net = cell = kind()
        net.initialize(mx.init.Uniform(1))
        if inside:
            net = Outer(cell)
        if optimized:
            net = graphopt.optimize(net, record=record)
        found = []
        for at in range(12):
            x = mx.nd.ones((2, 4)) * (at + 1) / 10
            found.append(net(x).asnumpy())
            kept = cell.seen["all"][-1] if kind is InLists else cell.state
            found.append(kept.asnumpy())
        return found

    np.testing.assert_allclose(called(optimized=True), called(optimized=False), rtol=1e-4)


def test_hybridized_ones_are_traced_as_in_mxnet() -> None:
    net = Watched()
    net.initialize()
    net.hybridize()
    fast = graphopt.optimize(net)
    fast(mx.nd.ones((2, 4)))
    assert "keeps an array" not in fast.explain()


class OwnZoneout(mx.gluon.rnn.ZoneoutCell):
    """As packages have it."""

    def hybrid_forward(self, F: Any, *args: Any) -> Any:
        return super().hybrid_forward(F, *args)


@pytest.mark.parametrize(
    "modify",
    [
        lambda cell: mx.gluon.contrib.rnn.VariationalDropoutCell(cell, 0.5),
        lambda cell: OwnZoneout(cell, 0.5, 0.5),
    ],
)
def test_cells_may_keep_what_is_reset(modify: Any) -> None:
    class Unrolled(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.cell = modify(mx.gluon.rnn.LSTMCell(4, input_size=3))

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.cell.unroll(3, x, merge_outputs=True)[0]

    net = Unrolled()
    net.initialize()
    fast = graphopt.optimize(net)
    fast(mx.nd.ones((2, 3, 3)))
    assert "keeps an array" not in fast.explain()
