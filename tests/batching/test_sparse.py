"""Samples that make sparse arrays of dense ones, which runs at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, check, initialized, rand

mx = import_mxnet()
nn, nd = mx.gluon.nn, mx.nd

SAMPLES = [(rand(n, 2, seed=n),) for n in (1, 4, 2, 4)]


def by_storage(net: Any, x: Any) -> Any:
    h = nd.relu(net.layer(x))
    return h * (2 if h.tostype("csr").stype == "csr" else 3)


def by_product(net: Any, x: Any) -> Any:
    h = nd.relu(net.layer(x))
    product = nd.dot(h, nd.ones((3, 3)), forward_stype="csr")
    return h * (2 if product.stype == "csr" else 3)


def by_rows(net: Any, x: Any) -> Any:
    h = nd.relu(net.layer(x))
    return h * h.tostype("row_sparse").indices.shape[0]


def of_weights(net: Any, x: Any) -> Any:
    sparse = nd.cast_storage(net.layer.weight.data(), "row_sparse")
    return nd.dot(x, sparse.tostype("default"), transpose_b=True)


@pytest.mark.parametrize("forward", [by_storage, by_product, by_rows, of_weights])
def test_results_are_those_of_each_sample(forward: Any) -> None:
    check(initialized(Fn(forward, layer=nn.Dense(3, in_units=2))), SAMPLES)


def test_sparse_results_are_sparse() -> None:
    net = initialized(Fn(lambda net, x: net.layer(x).tostype("csr"), layer=nn.Dense(3, in_units=2)))
    found = graphopt.batch(net)(SAMPLES)
    for one, (x,) in zip(found, SAMPLES, strict=True):
        assert one.stype == "csr"
        np.testing.assert_allclose(one.asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)


class Sparse(mx.gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.cast_storage(F.relu(x), "csr")


class Product(mx.gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.w = self.params.get("w", shape=(2, 2))

    def hybrid_forward(self, F: Any, x: Any, w: Any) -> Any:
        return F.dot(F.relu(x), w, forward_stype="csr")


@pytest.mark.parametrize("is_hybridized", [False, True])
@pytest.mark.parametrize("kind", [Sparse, Product])
def test_children_return_sparse_arrays(kind: type, is_hybridized: bool) -> None:
    def forward(net: Any, x: Any) -> Any:
        made = net.child(x)
        return x * (2 if made.stype == "csr" else 3)

    child = kind()
    child.hybridize(is_hybridized)
    check(initialized(Fn(forward, child=child)), SAMPLES, grads=False)
