"""What Blocks are told of hybridizing behind their first calls, and what hybridized ones keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


class Scaled(mx.gluon.HybridBlock):
    """Scales by an attribute."""

    by = 1.0

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.tanh(x * self.by)


class Net(mx.gluon.HybridBlock):
    """Has one within."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = Scaled()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.scaled(x) + 1


def child_off(own: Any, net: Any, x: Any) -> list[Any]:
    own.scaled.hybridize()
    found = [net(x)]
    net.scaled.hybridize(False)
    net.scaled.by = 3.0
    return [*found, net(x)]


def child_anew(own: Any, net: Any, x: Any) -> list[Any]:
    own.scaled.hybridize()
    found = [net(x)]
    net.scaled.by = 3.0
    net.scaled.hybridize()
    return [*found, net(x)]


def child_on(_own: Any, net: Any, x: Any) -> list[Any]:
    found = [net(x)]
    net.scaled.hybridize()
    found.append(net(x))
    net.scaled.by = 3.0
    return [*found, net(x)]


def off(own: Any, net: Any, x: Any) -> list[Any]:
    own.hybridize()
    found = [net(x)]
    own.hybridize(False)
    own.scaled.by = 3.0
    return [*found, net(x)]


def anew(own: Any, net: Any, x: Any) -> list[Any]:
    own.hybridize()
    found = [net(x)]
    own.scaled.by = 3.0
    own.hybridize()
    return [*found, net(x)]


def view_on(_own: Any, net: Any, x: Any) -> list[Any]:
    net.hybridize()
    found = [net(x)]
    net.by = net.scaled.by = 3.0
    return [*found, net(x)]


def view_off(_own: Any, net: Any, x: Any) -> list[Any]:
    net.hybridize()
    found = [net(x)]
    net.hybridize(False)
    net.scaled.by = 3.0
    return [*found, net(x)]


@pytest.mark.parametrize("act", [child_off, child_anew, child_on, off, anew, view_on, view_off])
def test_it_is_seen_in_the_next_call(act: Callable[[Any, Any, Any], list[Any]]) -> None:
    x = mx.nd.ones((2, 3))
    plain, own = Net(), Net()
    found = act(own, graphopt.optimize(own), x)
    for one, other in zip(found, act(plain, plain, x), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("is_child", [False, True])
def test_a_hybridized_net_is_one_net_for_all_calls(is_child: bool) -> None:
    def results(*, optimized: bool) -> list[float]:
        own = Net()
        own.hybridize()
        net = graphopt.optimize(own) if optimized else own
        found = [net(mx.nd.ones((2, 3)))]
        (own.scaled if is_child else own).by = 3.0
        found += [net(mx.nd.ones((2, 3))), net(mx.nd.ones((8, 3)))]
        with mx.autograd.record():
            found.append(net(mx.nd.ones((2, 3))))
        found.append(net(mx.nd.ones((2, 3), dtype="float64")))
        return [float(part[0, 0].asscalar()) for part in found]

    np.testing.assert_allclose(results(optimized=True), results(optimized=False), rtol=1e-5)


def test_a_view_of_a_child_may_be_replaced() -> None:
    class Head(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Dense(4), nn.Dense(3)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.head(self.body(x))

    net = Head()
    net.head = graphopt.optimize(net.head)
    net.head = graphopt.optimize(net.head)
    net.head = nn.Dense(5)
    net.initialize()
    assert net(mx.nd.ones((2, 4))).shape == (2, 5)
    net.head = graphopt.optimize(net.head)
    with pytest.raises(TypeError, match="is not allowed"):
        net.head = nn.Activation("relu")
    assert isinstance(net.head, nn.Dense)


@pytest.mark.parametrize("kind", ["function", "decorator", "step"])
def test_a_view_tells_the_users_block(kind: str) -> None:
    class Keeping(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3, in_units=4)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            self.last = self.dense(x)
            return F.tanh(self.last)

    own = (graphopt.optimize(Keeping) if kind == "decorator" else Keeping)()
    own.initialize()
    net = graphopt.optimize(own) if kind == "function" else own
    if kind == "step":
        trainer = mx.gluon.Trainer(own.collect_params(), "sgd")
        net = graphopt.train_step(own, mx.gluon.loss.L2Loss(), trainer)
    net.hybridize(static_alloc=True)
    assert own._active
    assert own.dense._active
    assert dict(own._flags)["static_alloc"]
    x = mx.nd.ones((2, 4))
    found = net(x, mx.nd.ones((2, 3))) if kind == "step" else net(x)
    assert found.shape == ((2,) if kind == "step" else (2, 3))
    assert "mode 'auto'" in net.explain()  # it is compiled whole
    net.hybridize(False)
    assert not own._active


def test_weights_are_drawn_in_the_order_of_the_graph() -> None:
    class Crossed(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__(prefix="")
            self.one, self.other = nn.Dense(3, prefix="one_"), nn.Dense(3, prefix="other_")

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            one, other = self.one(x), self.other(x)
            return F.relu(other * 2 + one)

    def drawn(*, optimized: bool) -> list[np.ndarray]:
        mx.random.seed(1)
        own = Crossed()
        net = graphopt.optimize(own) if optimized else own
        net.initialize(mx.init.Xavier())
        net.hybridize()
        net(mx.nd.ones((2, 5)))
        return [p.data().asnumpy() for p in own.collect_params().values()]

    for found, want in zip(drawn(optimized=True), drawn(optimized=False), strict=True):
        np.testing.assert_array_equal(found, want)
