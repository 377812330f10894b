"""Nets that make sparse arrays of dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError

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


class Product(mx.gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.w = self.params.get("w", shape=(3, 2), init=mx.init.Uniform(1))

    def hybrid_forward(self, F: Any, x: Any, w: Any) -> Any:
        return F.dot(F.cast_storage(x, "csr"), w)


def product(is_hybridized: bool = False) -> Any:
    mx.random.seed(3)
    net = Product()
    net.initialize()
    net.hybridize(is_hybridized)
    return net


def gradients(net: Any, own: Any) -> list[np.ndarray]:
    """Of what is given and of the weight, in some steps with numbers left over in memory."""
    x = mx.nd.array(np.arange(1, 13).reshape(4, 3))
    x.attach_grad()
    found = []
    for _ in range(4):
        left_over = [mx.nd.ones((4, 3)) * 7 for _ in range(50)]
        mx.nd.waitall()
        del left_over
        with mx.autograd.record():
            y = net(x)
        y.backward()
        found += [x.grad.asnumpy(), own.w.grad().asnumpy()]
    return found


@pytest.mark.parametrize("record", [None, True, False])
@pytest.mark.parametrize("is_hybridized", [False, True])
def test_gradients_are_those_of_mxnet(is_hybridized: bool, record: bool | None) -> None:
    """Graphs with static memory leave that of the csr array unwritten."""
    net, own = product(is_hybridized), product(is_hybridized)
    fast = graphopt.optimize(own, record=record)
    for got, want in zip(gradients(fast, own), gradients(net, net), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert "makes a sparse array" in fast.explain()
    x = mx.nd.ones((4, 3))
    np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert [title.split()[0] for title in fast.receipts()] == ["inference"]


def test_steps_learn_what_python_learns() -> None:
    def weights(is_fast: bool) -> list[np.ndarray]:
        mx.random.seed(3)
        net = mx.gluon.nn.HybridSequential()
        net.add(mx.gluon.nn.Dense(3, in_units=4), Product())
        net.initialize(mx.init.Uniform(0.5))
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        loss = mx.gluon.loss.L2Loss()
        step = graphopt.train_step(net, loss, trainer) if is_fast else None
        x, y = mx.nd.ones((2, 4)), mx.nd.ones((2, 2))
        for _ in range(6):
            if step:
                step(x, y)
                continue
            with mx.autograd.record():
                losses = loss(net(x), y)
            losses.backward()
            trainer.step(2)
        return [p.data().asnumpy() for p in net.collect_params().values()]

    for got, want in zip(weights(True), weights(False), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_strict_nets_are_refused_where_they_learn() -> None:
    fast = graphopt.optimize(product(), strict=True)
    with mx.autograd.record(), pytest.raises(UnsupportedError, match="makes a sparse array"):
        fast(mx.nd.ones((4, 3)))
    assert fast(mx.nd.ones((4, 3))).shape == (4, 2)
