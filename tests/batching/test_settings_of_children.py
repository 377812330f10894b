"""Attributes of children that the net itself sets within a batch, or somebody between two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon = mx.gluon


class Scaled(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Scales by an attribute."""

    by: Any = 1.0

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        by = self.by
        return F.tanh(x * (by[0] if isinstance(by, (list, dict)) else float(by)))


class Setting(gluon.Block):  # type: ignore[misc, name-defined]
    """Sets it for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.seen = gluon.nn.HybridSequential(), 0
        self.scaled.add(Scaled())

    def forward(self, x: Any, by: float) -> Any:
        self.seen += 1
        if by:
            self.scaled[0].by = by
        return self.scaled(x)


def samples(*values: float) -> list[Any]:
    return [(mx.nd.array([[0.1 * n, 0.5]]), by) for n, by in enumerate(values)]


def check(net: Any, batched: Any, given: list[Any]) -> None:
    found, want = batched(given).asnumpy(), [net(*one).asnumpy()[0] for one in given]
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_each_sample_has_its_own() -> None:
    net = Setting()
    batched = graphopt.batch(net)
    for _ in range(3):
        check(net, batched, samples(1.0, 2.0, 1.0, 3.0, 0.0))
    assert "a batch sets 'by'" in batched.explain()


def test_one_that_stays_is_traced() -> None:
    net = Setting()
    batched = graphopt.batch(net)
    for _ in range(3):
        check(net, batched, samples(2.0, 2.0, 2.0, 0.0))
    assert "operator by operator" not in batched.explain()
    check(net, batched, samples(2.0, 3.0))


@pytest.mark.parametrize(
    "kind",
    [float, np.float32, lambda by: [by], lambda by: {0: by}],
    ids=["float", "numpy", "list", "dict"],
)
def test_set_between_batches(kind: Callable[[float], Any]) -> None:
    net = Setting()
    batched = graphopt.batch(net)
    for by in (1.0, 2.0, 3.0):
        net.scaled[0].by = kind(by)
        check(net, batched, samples(0.0, 0.0))


def test_lists_written_between_batches() -> None:
    net = Setting()
    net.scaled[0].by = [1.0]
    batched = graphopt.batch(net)
    for by in (1.0, 2.0, 3.0):
        net.scaled[0].by[0] = by
        check(net, batched, samples(0.0, 0.0))
