"""Nets that make sparse arrays of dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


class OfParameter(mx.gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.w = self.params.get("w", shape=(4, 3), init=mx.init.Uniform(1))

    def hybrid_forward(self, F: Any, x: Any, w: Any) -> Any:
        return F.dot(F.cast_storage(w, "csr"), x)


class OfData(mx.gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.sqrt(F.relu(F.cast_storage(x, "csr")))


class OfProduct(mx.gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.sqrt(F.relu(F.dot(x, F.ones((2, 2)), forward_stype="csr")))


@pytest.mark.parametrize("mode", ["auto", "inference"])
@pytest.mark.parametrize("kind", [OfParameter, OfData, OfProduct])
def test_they_are_what_mxnet_makes(kind: type, mode: str) -> None:
    net = kind()
    net.initialize()
    x = mx.nd.array([[1, 0], [0, 4], [2, 0]])
    want = net(x)
    fast = graphopt.optimize(net, mode=mode)
    for _ in range(3):
        found = fast(x)
        assert found.stype == want.stype
        np.testing.assert_allclose(found.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)
