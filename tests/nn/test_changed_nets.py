"""Nets that forget their graphs, or consist of others than when they were compiled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class Detector(gluon.HybridBlock):
    """Forgets its graph when what it computes is set, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2)

    def set_scale(self, scale: float) -> None:
        self._clear_cached_op()
        self.scale = scale

    def hybrid_forward(self, F, x):
        return self.dense(x) * self.scale


def both(make: Callable[[], Any]) -> list[tuple[Any, Any]]:
    """A net, and the same as it is or optimized, with equal parameters."""
    found = []
    for is_optimized in (False, True):
        net = make()
        net.initialize(mx.init.One())
        found.append((net, graphopt.optimize(net) if is_optimized else net))
    return found


def hybridized() -> Any:
    net = Detector()
    net.hybridize()
    return net


def test_a_graph_that_is_forgotten_is_made_anew() -> None:
    x, found = mx.nd.ones((1, 2)), []
    for net, called in both(hybridized):
        values = [called(x)]
        net.scale = 2.0  # MXNet has its graph, in which that is a number
        values.append(called(x))
        called.set_scale(3.0)
        values.append(called(x))
        net.scale = 7.0
        net.cast("float32")
        values.append(called(x))
        found.append([value.asnumpy().tolist() for value in values])
    assert found[1] == found[0]
    assert found[0][0] != found[0][2]


class Around(gluon.HybridBlock):
    """Is not hybridized, and holds one that is."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.detector = hybridized()
        self.set_scale = self.detector.set_scale

    def hybrid_forward(self, F, x):
        return self.detector(x) + 1


def test_a_child_forgets_its_graph() -> None:
    x, found = mx.nd.ones((1, 2)), []
    for net, called in both(Around):
        values = [called(x)]
        net.set_scale(3.0)
        values.append(called(x))
        net.set_scale(5.0)
        net.detector(x)  # which makes another
        values.append(called(x))
        net.detector.scale = 7.0
        net.cast("float32")
        values.append(called(x))
        found.append([value.asnumpy().tolist() for value in values])
        if called is not net:
            entries = called.graphopt_state.compiled.entries
            called(x)
            assert called.graphopt_state.compiled.entries == entries
    assert found[1] == found[0]
    assert len({str(value) for value in found[0]}) == 4


@pytest.mark.parametrize("make", [hybridized, Around])
def test_graphs_made_alike_are_not_compiled_again(make: Callable[[], Any]) -> None:
    def entries(net: Any) -> list[Any]:
        return net.graphopt_state.compiled.entries

    x, found = mx.nd.array([[1.0, -2.0], [0.5, 3.0]]), []
    for net, called in both(make):
        values = [called(x), called(x[:1])]
        before = entries(called) if called is not net else []
        for scale in (1.0, 1.0, 2.0, 2.0):
            net.set_scale(scale)
            values += [called(x), called(x[:1])]
            if called is not net and scale == 1.0:
                assert entries(called) == before
        net.set_scale(2.0)
        with mx.autograd.record():
            y = called(x)
        y.backward()
        values += [y, net.collect_params()[next(iter(net.collect_params()))].grad()]
        net.set_scale(5.0)
        values += [called(x), called(x[:1])]
        found.append([value.asnumpy() for value in values])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


def test_frozen_numbers_are_read_again_as_a_graph_is_forgotten() -> None:
    net = hybridized()
    net.initialize(mx.init.One())
    fast, x = graphopt.optimize(net, mode="inference"), mx.nd.ones((1, 2))
    fast(x)
    net.dense.weight.set_data(mx.nd.full((2, 2), 3.0))
    net.set_scale(1.0)
    np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), atol=1e-6)


class Squares(gluon.loss.Loss):
    def __init__(self) -> None:
        super().__init__(None, 0)
        self.scale = 1.0

    def set_scale(self, scale: float) -> None:
        self._clear_cached_op()
        self.scale = scale

    def hybrid_forward(self, F, x, label):
        return ((x - label) ** 2 * self.scale).mean(axis=1)


def forget_net(net: Any, loss: Any) -> None:
    net.set_scale(3.0)


def forget_loss(net: Any, loss: Any) -> None:
    loss.set_scale(3.0)


def cast(net: Any, loss: Any) -> None:
    net.scale = 3.0
    net.cast("float32")


def hybridize_a_child(net: Any, loss: Any) -> None:
    """Which leaves the graph of a hybridized net as it is."""
    net.scale = 3.0
    net.dense.hybridize()


@pytest.mark.parametrize("make", [hybridized, Around])
@pytest.mark.parametrize("change", [forget_net, forget_loss, cast, hybridize_a_child])
def test_a_step_after_a_graph_is_forgotten(
    make: Callable[[], Any], change: Callable[[Any, Any], None]
) -> None:
    def train(is_fast: bool) -> list[np.ndarray]:
        net, loss = make(), Squares()
        net.initialize(mx.init.One())
        loss.hybridize()
        options = {"learning_rate": 0.01}
        trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore=None)
        step = graphopt.train_step(net, loss, trainer)
        found = []
        for number in range(6):
            if number == 3:
                change(getattr(net, "detector", net), loss)
            x = mx.nd.array(np.random.default_rng(number).normal(size=(4, 2)))
            if is_fast:
                found.append(step(x, mx.nd.ones((4, 2))))
                continue
            with mx.autograd.record():
                found.append(loss(net(x), mx.nd.ones((4, 2))))
            found[-1].backward()
            trainer.step(4)
        return [losses.asnumpy() for losses in found]

    for mine, theirs in zip(train(is_fast=True), train(is_fast=False), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def layers() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2, use_bias=False), nn.Dense(2, in_units=2, use_bias=False))
    return net


@pytest.mark.parametrize("record", [True, False])
def test_a_parameter_takes_the_place_of_another(record: bool) -> None:
    x, found = mx.nd.ones((1, 2)), []
    for is_optimized in (False, True):
        net = layers()
        net[0].initialize(mx.init.One())
        net[1].initialize(mx.init.Constant(5))
        called = graphopt.optimize(net, record=record) if is_optimized else net
        values = [called(x)]
        del net[1]._reg_params["weight"]
        net[1].weight = net[0].weight
        with mx.autograd.record():
            values.append(called(x))
        values[-1].backward()
        values.append(net[0].weight.grad())
        found.append([value.asnumpy().tolist() for value in values])
    assert found[1] == found[0]


def test_a_layer_is_left_out_by_new_children() -> None:
    x, found = mx.nd.ones((1, 2)), []
    for net, called in both(layers):
        values = [called(x)]
        net._children = OrderedDict([*net._children.items()][:-1])
        values.append(called(x))
        found.append([value.asnumpy().tolist() for value in values])
    assert found[1] == found[0]
    assert found[0][0] != found[0][1]


class Inner(gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=4)

    def hybrid_forward(self, F, x):
        return F.tanh(self.dense(x))


class Activated(Inner):
    """Its activation can be taken away, which Gluon refuses to do."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Activation("relu")

    def hybrid_forward(self, F, x):
        y = self.dense(x)
        return y if self.act is None else self.act(y)


class Surrounding(gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.inner = Activated()

    def hybrid_forward(self, F, x):
        return self.inner(x)


@pytest.mark.parametrize("record", [None, True, False])
@pytest.mark.parametrize("kind", [Activated, Surrounding])
def test_children_are_set_past_gluon(kind: Any, record: bool | None) -> None:
    x, found = mx.nd.array([[1, -2, -3, -4]]), []
    for is_optimized in (False, True):
        net = kind()
        net.initialize(mx.init.One())
        called = graphopt.optimize(net, record=record) if is_optimized else net
        inner = getattr(net, "inner", net)
        values = [called(x)]
        object.__setattr__(inner, "act", None)
        values.append(called(x))
        inner.__dict__["dense"] = nn.Dense(3, in_units=4)
        inner.dense.initialize(mx.init.Constant(2))
        values.append(called(x))
        inner.__dict__["act"] = nn.Activation("softrelu")
        values.append(called(x))
        del inner.act
        inner.act = None
        values.append(called(x))
        found.append([value.asnumpy() for value in values])
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


class Outer(gluon.Block):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.one, self.other = Inner(), Inner()

    def forward(self, x):
        return self.other(self.one(x) * x.shape[0])


def test_a_call_leaves_the_context_of_the_thread_as_it_is() -> None:
    net = Outer()
    net.initialize(ctx=mx.cpu(1))
    x = mx.nd.ones((2, 4), ctx=mx.cpu(1))
    want = net(x)
    called = graphopt.optimize(net, record=True)
    got = called(x)
    assert mx.current_context() == mx.cpu(0)
    np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)


def test_a_net_of_other_layers_is_exported_once_it_was_called(tmp_path: Path) -> None:
    net = Detector()
    net.initialize()
    called = graphopt.optimize(net)
    x = mx.nd.ones((1, 2))
    called(x)
    net.dense = nn.Dense(5, in_units=2)
    net.dense.initialize()
    path = str(tmp_path / "net")
    with pytest.raises(InputError, match="cannot be exported yet: call it once first"):
        called.export(path)
    assert not [*tmp_path.iterdir()]
    want = called(x)
    called.export(path)
    loaded = graphopt.load(f"{path}-symbol.json", f"{path}-0000.params")
    np.testing.assert_allclose(loaded(x).asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)


class WhereItLearns(gluon.HybridBlock):
    """Reads a hybridized Block only where it learns."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense, self.detector = nn.Dense(2, in_units=2), hybridized()

    def hybrid_forward(self, F, x):
        y = self.dense(x)
        return self.detector(y) if mx.autograd.is_training() else y


def test_what_other_calls_read_may_be_another_graph() -> None:
    found = []
    for net, called in both(WhereItLearns):
        values = []
        for turn, scale in enumerate((1.0, 3.0, 3.0, 5.0)):
            net.detector.set_scale(scale)
            for rows in range(1 + turn, 8 + turn):
                x = mx.nd.arange(2 * rows).reshape((-1, 2))
                values.append(called(x))  # of which the graph is as before
                with mx.autograd.record():
                    values.append(called(x))
        found.append([value.asnumpy() for value in values])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)
