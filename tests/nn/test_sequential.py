"""Plain ``Sequential``s, whose code is Gluon's: one graph of all that can be traced in a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError

mx = import_mxnet()
nn = mx.gluon.nn


class Plain(mx.gluon.Block):
    """A Block that cannot be traced: its Python asks for a shape."""

    def forward(self, x: Any) -> Any:
        return x * x.shape[1]


class Doubling(nn.Sequential):
    """A ``Sequential`` with code of its own."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


class Named(nn.Sequential):
    """A ``Sequential`` with Gluon's code, and a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.add(nn.Dense(6, activation="tanh"), nn.Dense(4))

    def features(self, x: Any) -> Any:
        return self[0](x)


def stack(*children: Any, cls: Any = nn.Sequential) -> Any:
    net = cls()
    with net.name_scope():
        net.add(*children)
    net.initialize(mx.init.Normal(0.5))
    return net


def data() -> Any:
    return mx.nd.array(np.random.default_rng(3).normal(size=(4, 5)))


def values_and_gradients(net: Any, x: Any, parameters: Any) -> list[Any]:
    with mx.autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    gradients = [p.grad().asnumpy().copy() for p in parameters.values()]
    return [net(x).asnumpy(), loss.asnumpy(), *gradients]


def titles(net: Any) -> list[str]:
    return [entry.original.name for entry in net._graphopt_entries()]


def check(net: Any, names: list[str] | None = None) -> Any:
    """Compare with MXNet; ``names``: of the graphs, the net itself by default."""
    x = data()
    net(x)
    parameters = net.collect_params()
    expected = values_and_gradients(net, x, parameters)
    fast = graphopt.optimize(net, record=False)
    for found, wanted in zip(values_and_gradients(fast, x, parameters), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    assert set(titles(fast)) == set([net.name] if names is None else names)
    return fast


def test_a_sequential_is_one_graph() -> None:
    net = check(stack(nn.Dense(6, activation="relu"), nn.Dense(5), nn.Dense(3)))
    assert "child by child" not in net.explain()
    assert isinstance(net, nn.Sequential)
    assert len(net) == 3


def test_sequentials_in_sequentials_are_one_graph() -> None:
    inner, outer = nn.Sequential(), nn.Sequential()
    inner.add(nn.Dense(6), nn.LayerNorm(), nn.Activation("relu"))
    outer.add(nn.Dense(4))
    check(stack(inner, outer, nn.Dense(3)))


def test_a_subclass_with_gluons_code_is_one_graph() -> None:
    net = Named()
    net.initialize(mx.init.Normal(0.5))
    x = data()
    expected = net.features(x).asnumpy()
    fast = check(net)
    np.testing.assert_allclose(fast.features(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fast.forward(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert "its methods ran" in fast.explain()


def test_code_of_its_own_stays_python() -> None:
    net = stack(nn.Dense(6), nn.Dense(3), cls=Doubling)
    check(net, [child.name for child in net])


def test_what_lies_between_blocks_that_cannot_be_traced_is_one_graph() -> None:
    net = stack(nn.Dense(6), nn.Dense(5), Plain(), nn.Dense(4), Plain(), nn.Dense(4), nn.Dense(3))
    first, last = f"{net.name}_0_to_1", f"{net.name}_5_to_6"
    fast = check(net, [first, net[3].name, last])
    text = fast.explain()
    assert f"children '0' to '1' of Sequential {net.name!r} are one graph" in text
    assert f"child '2': Plain {net[2].name!r} is no HybridBlock" in text
    np.testing.assert_allclose(fast[0](data()).asnumpy(), net[0](data()).asnumpy(), rtol=1e-5)


def test_one_that_cannot_be_traced_leaves_the_others_compiled() -> None:
    class Untraceable(mx.gluon.HybridBlock):
        def hybrid_forward(self, _F: Any, x: Any) -> Any:  # noqa: N803 - Gluon's name
            return x * x.shape[1]

    net = stack(nn.Dense(6), Untraceable(), nn.Dense(3))
    fast = check(net, [net[0].name, net[2].name])
    assert "cannot be traced" in fast.explain()
    with pytest.raises(UnsupportedError, match="cannot be traced"):
        graphopt.optimize(net, strict=True)(data())


def test_an_empty_sequential_gives_back_what_it_gets() -> None:
    x = data()
    np.testing.assert_array_equal(graphopt.optimize(nn.Sequential())(x).asnumpy(), x.asnumpy())


def test_numpy_arrays() -> None:
    mx.npx.set_np()
    try:
        net = stack(nn.Dense(6, activation="relu"), nn.Dense(3))
        x = mx.np.array(data().asnumpy())
        fast = graphopt.optimize(net)
        found = fast(x)
        assert isinstance(found, mx.np.ndarray)
        np.testing.assert_allclose(found.asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)
        assert titles(fast) == [net.name]
    finally:
        mx.npx.reset_np()


def test_export_and_lift(tmp_path: Path) -> None:
    net = stack(nn.Dense(6, activation="relu"), nn.Dense(3))
    x = data()
    fast = graphopt.optimize(net)
    expected = fast(x).asnumpy()
    fast.export(tmp_path / "net")
    again = graphopt.load(str(tmp_path / "net-symbol.json"), str(tmp_path / "net-0000.params"))
    np.testing.assert_allclose(again(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    assert graphopt.lift(net, shapes={"data": (4, 5)}).name == net.name


def test_a_training_step_is_one_call() -> None:
    net = stack(nn.Dense(6, activation="relu"), nn.Dense(3))
    label = mx.nd.array([0, 1, 2, 0])
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = graphopt.train_step(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    first = step(data(), label).mean().asscalar()
    for _ in range(20):
        last = step(data(), label).mean().asscalar()
    assert last < first
    assert "runs all of a step" in step.explain()
    net.add(nn.Dense(3))  # the step follows
    net[2].initialize()
    expected = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(data()), label).asnumpy()
    np.testing.assert_allclose(step(data(), label).asnumpy(), expected, rtol=1e-5)
