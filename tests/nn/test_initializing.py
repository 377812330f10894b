"""Parameters whose shapes a first call tells, of layers that lead to no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


class Net(mx.gluon.HybridBlock):
    """Like a WaveNet, whose last residual layer nobody reads."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.first, self.unread, self.last = nn.Dense(3), nn.Dense(4), nn.Dense(2)
            self.uncalled = nn.Dense(2)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = self.first(x)
        self.unread(x)
        return self.last(x)


@pytest.mark.parametrize("learns", [False, True])
def test_they_are_initialized_in_mxnets_order(tmp_path: Path, *, learns: bool) -> None:
    def called(*, optimized: bool) -> dict[str, Any]:
        mx.random.seed(1)
        net = Net()
        net.initialize(mx.init.Uniform(1))
        fast = graphopt.optimize(net) if optimized else net
        for rows in (2, 3):
            with mx.autograd.record() if learns else mx.autograd.pause():
                fast(mx.nd.ones((rows, 5)))
        assert net.uncalled.weight._deferred_init
        del net.uncalled
        net._children.pop("uncalled")
        net.save_parameters(str(tmp_path / "net.params"))
        return {name: p.data().asnumpy() for name, p in net.collect_params().items()}

    want, found = called(optimized=False), called(optimized=True)
    assert want.keys() == found.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_hybridized_nets_run_no_python_again() -> None:
    calls = []

    class Counted(Net):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            calls.append(F)
            return super().hybrid_forward(F, x)

    net = Counted()
    net.initialize()
    net.hybridize()
    graphopt.optimize(net)(mx.nd.ones((2, 5)))
    assert calls == [mx.sym]
