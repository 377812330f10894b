"""Results are the caller's own: what is written into them, no other call sees."""

from __future__ import annotations

from typing import Any

import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
CALLS = 6


class Anchors(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Some of its results no data reaches."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.act = mx.gluon.nn.PReLU()
            self.grid = self.params.get("grid", shape=(3,), init="ones")
            self.table = self.params.get_constant("table", mx.nd.ones((2,)))

    def hybrid_forward(self, F: Any, x: Any, grid: Any, table: Any) -> Any:
        y = self.act(x)
        return y, grid * 2, F.ones((3,)), table + 1, F.reshape(y, (-1,)), F.zeros_like(grid)


@pytest.mark.parametrize("options", [{}, {"mode": "inference"}, {"passes": "none"}])
def test_writes_into_results_of_a_net(options: dict[str, Any]) -> None:
    net, x = Anchors(), mx.nd.ones((2, 3))
    net.initialize()
    wanted = [float(a.reshape((-1,))[0].asscalar()) for a in net(x)]
    optimized = graphopt.optimize(net, **options)
    for _ in range(CALLS):
        results = optimized(x)
        assert [float(a.reshape((-1,))[0].asscalar()) for a in results] == wanted
        for result in results:
            result += 1
    for changed in range(len(wanted)):  # of one call, neither
        results = optimized(x)
        results[changed][:] = 77
        others = [float(a.reshape((-1,))[0].asscalar()) for a in results]
        assert [a for n, a in enumerate(others) if n != changed] == [
            a for n, a in enumerate(wanted) if n != changed
        ]


def test_writes_into_outputs_of_an_executor() -> None:
    w = mx.sym.var("w", shape=(3,))
    outputs = mx.sym.Group([mx.sym.tanh(mx.sym.var("x")), w * 2, mx.sym.ones((2,))])
    arrays = {"x": mx.nd.ones((2, 3)), "w": mx.nd.ones((3,))}
    executor = graphopt.optimize(outputs.bind(mx.cpu(), arrays))
    for _ in range(CALLS):
        _, doubled, ones = executor.forward(is_train=False)
        assert (float(doubled[0].asscalar()), float(ones[0].asscalar())) == (2, 1)
        doubled += 1
        ones += 1
