"""Blocks that are taken child by child, and what else runs on their optimized children."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import GraphError, InputError
from graphopt.nn import compiled

mx = import_mxnet()
nn = mx.gluon.nn


class Coder(mx.gluon.HybridBlock):
    """A HybridBlock with a method that calls its own ``forward``, as Sockeye's decoders have."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(5, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.tanh(self.dense(x)) * F.sigmoid(x)

    def code(self, x: Any) -> Any:
        return self.forward(x)


class Model(mx.gluon.Block):
    """A plain Block with methods beside ``forward``, and one of them kept as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.first, self.second = Coder(), Coder()
        self.both = [self.first, self.second]
        self.seen: list[int] = []
        self.kept = self.encode

    def encode(self, x: Any) -> Any:
        """Both children, by attribute and by list."""
        self.calls += 1
        self.seen.append(x.shape[0])
        return self.both[1](self.first.code(x))

    def forward(self, x: Any) -> Any:
        """Through a method that was bound before."""
        return self.kept(x)


def made(block: Any) -> Any:
    block.initialize(mx.init.Normal(0.5))
    block(mx.nd.ones((1, 5)))
    return block


def signatures(net: Any) -> list[tuple[str, str]]:
    return [(entry.original.name, entry.types) for entry in net._graphopt_entries()]


@pytest.mark.parametrize("way", ["call", "encode", "kept"])
def test_all_ways_run_on_optimized_children(way: str) -> None:
    plain = made(Model())
    net = graphopt.optimize(plain, record=False)
    x = mx.nd.array(np.random.default_rng(0).normal(size=(3, 5)))
    expected = plain(x).asnumpy()
    found = net(x) if way == "call" else getattr(net, way)(x)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5, atol=1e-6)
    if way == "kept":  # it was bound to the user's own Block, and stays so outside of its methods
        assert signatures(net) == []
        return
    assert [name for name, _ in signatures(net)] == [plain.first.name, plain.second.name]
    assert f"taken child by child: Model {plain.name!r} is no HybridBlock" in net.explain()


def test_what_its_code_writes_is_written_to_the_users_block() -> None:
    plain = made(Model())
    net = graphopt.optimize(plain)
    x = mx.nd.ones((2, 5))
    net(x)
    net.encode(x)
    assert plain.calls == net.calls == 3
    assert plain.seen == [1, 2, 2]
    assert type(plain.first) is Coder
    assert type(plain.both[1]) is Coder


def test_attributes_that_hold_children_can_be_deleted() -> None:
    class Shrinking(Model):
        """Lets go of its list."""

        def shrink(self) -> bool:
            del self.both
            return hasattr(self, "both")

    plain = made(Shrinking())
    assert graphopt.optimize(plain).shrink() is False
    assert not hasattr(plain, "both")


def test_gradients_come_through_methods() -> None:
    plain = made(Model())
    net = graphopt.optimize(plain)
    x = mx.nd.ones((2, 5))
    grads = []
    for run in (plain, net, net.encode):
        with mx.autograd.record():
            loss = run(x).sum()
        loss.backward()
        grads.append(plain.first.dense.weight.grad().asnumpy().copy())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads[2], grads[0], rtol=1e-5, atol=1e-6)


def test_a_child_that_is_exchanged_is_the_one_that_runs() -> None:
    plain = made(Model())
    net = graphopt.optimize(plain)
    x = mx.nd.ones((2, 5))
    net(x)
    net.first = made(Coder())
    assert type(plain.first) is Coder
    np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert net._children["first"] is plain.first


def test_forward_of_a_view_is_compiled() -> None:
    plain = made(Coder())
    net = graphopt.optimize(plain)
    x = mx.nd.ones((2, 5))
    for run in (net.forward, net.code):
        np.testing.assert_allclose(run(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert len(signatures(net)) == 1


def test_a_subclass_of_a_decorated_block_calls_forward() -> None:
    @graphopt.optimize
    class Base(Coder):
        """Decorated."""

    class Derived(Base):
        """Not decorated itself."""

    net = made(Derived())
    x = mx.nd.ones((2, 5))
    np.testing.assert_allclose(net.code(x).asnumpy(), net(x).asnumpy())


def test_methods_may_be_called_while_a_decorated_block_is_made() -> None:
    @graphopt.optimize
    class Built(mx.gluon.Block):
        """Makes its children by a method, one before Gluon knows of it."""

        def __init__(self) -> None:
            self.early = self.number()
            super().__init__()
            self.build("a")
            self.build("b")

        def number(self) -> int:
            return 7

        def build(self, name: str) -> None:
            setattr(self, name, nn.Dense(5, flatten=False))

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    net = made(Built())
    assert net.early == 7
    assert list(net._children) == ["a", "b"]
    assert net(mx.nd.ones((2, 5))).shape == (2, 5)
    assert len(net.collect_params().keys()) == 4


def test_gluons_own_methods_work_on_the_users_block() -> None:
    plain = nn.Sequential()
    net = graphopt.optimize(plain)
    net.add(nn.Dense(4))
    net.add(nn.Dense(3))
    assert len(plain) == len(net) == 2
    net.initialize()
    assert net(mx.nd.ones((2, 5))).shape == (2, 3)
    assert len(net._graphopt_entries()) == 1


def test_children_that_a_method_makes_are_the_users() -> None:
    class Growing(mx.gluon.Block):
        """Gets a layer, and has another exchanged, by methods."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Dense(5, flatten=False)

        def grow(self) -> None:
            self.second = nn.Dense(5, flatten=False)
            self.first = nn.Dense(5, flatten=False, activation="relu")
            self.register_child(nn.Dense(5, flatten=False), "third")

        def forward(self, x: Any) -> Any:
            for child in self._children.values():
                x = child(x)
            return x

    plain = Growing()
    net = graphopt.optimize(plain, record=False)
    net.initialize()
    net(mx.nd.ones((2, 5)))
    net.grow()
    assert list(plain._children) == ["first", "second", "third"]
    assert plain._children["first"] is plain.first
    assert plain.first.act is not None
    plain.initialize()
    x = mx.nd.array([[1, -1, 2, -2, 3]])
    np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert len(net._graphopt_entries()) == 3


class Scaled(mx.gluon.HybridBlock):
    """Its ``*`` broadcasts arrays, but not Symbols."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(3)
            self.scale = self.params.get("scale", shape=(1, 3), init="ones")

    def hybrid_forward(self, F, x, scale):
        return self.dense(x) * scale


@pytest.mark.parametrize("record", [None, True, False])
@pytest.mark.parametrize("first", [1, 2])
def test_arguments_that_fit_its_python_only(record, first):
    plain = Scaled()
    plain.initialize(mx.init.Xavier())
    net = graphopt.optimize(plain, record=record)
    for rows in (first, 2, 1, 3, 3):
        x = mx.nd.arange(rows * 4).reshape((rows, 4)) / 10
        np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
        gradients = []
        for block in (net, plain):
            with mx.autograd.record():
                loss = block(x).sum()
            loss.backward()
            gradients.append(plain.scale.grad().asnumpy())
        np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-6)
    assert "its graph refuses arguments that its Python takes" in net.explain()
    for option in ({"strict": True}, {"memory": "10MB"}):
        with pytest.raises(InputError, match="do not fit"), mx.autograd.record():
            graphopt.optimize(plain, **option)(x)


class Shuffled(mx.gluon.HybridBlock):
    """MXNet has no gradient of one output, and refuses the graph for it; autograd needs none."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(3)

    def hybrid_forward(self, F, x):
        return self.dense(x), F.shuffle(x)


def test_graphs_that_mxnet_refuses():
    plain = Shuffled()
    plain.initialize(mx.init.Xavier())
    net = graphopt.optimize(plain)
    for rows in (4, 4, 3):
        x = mx.nd.arange(rows * 4).reshape((rows, 4)) / 10
        gradients = []
        for block in (net, plain):
            with mx.autograd.record():
                loss = block(x)[0].sum()
            loss.backward()
            gradients.append(plain.dense.weight.grad().asnumpy())
        np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-6)
    assert "MXNet runs its Python, but not its graph: Operator _shuffle" in net.explain()
    with pytest.raises(mx.MXNetError, match="_shuffle"), mx.autograd.record():
        graphopt.optimize(plain, strict=True)(x)


class Looped(mx.gluon.HybridBlock):
    """A sum behind a loop has no shape in a graph, where `+` is MXNet's of equal shapes then."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(3, flatten=False)

    def hybrid_forward(self, F, x):
        _, (last,) = F.contrib.while_loop(
            cond=lambda a: F.sum(a * a) < 100,
            func=lambda a: ([], [a * 2 + 1]),
            loop_vars=[self.dense(x)],
            max_iterations=8,
        )
        return self.dense(x) + last.sum()


@pytest.mark.parametrize("record", [None, True, False])
@pytest.mark.parametrize("trains_first", [True, False])
def test_graphs_that_no_engine_runs(record, trains_first):
    plain = Looped()
    plain.initialize(mx.init.Xavier())
    net = graphopt.optimize(plain, record=record)
    for rows, trains in ((4, trains_first), (4, True), (4, False), (3, True), (3, False)):
        x = mx.nd.arange(rows * 4).reshape((rows, 4)) / 10
        found = []
        for block in (net, plain):
            with mx.autograd.record() if trains else mx.autograd.pause():
                y = block(x)
            if trains:
                y.backward()
            found.append((y.asnumpy(), plain.dense.weight.grad().asnumpy()))
        for got, want in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert "MXNet runs its Python, but not its graph: " in net.explain()
    with pytest.raises(GraphError, match="MXNet cannot run graph"):
        graphopt.optimize(plain, strict=True)(x)


def test_graphs_that_graphopt_cannot_write(monkeypatch):
    def refused(*args, **kwargs):
        raise GraphError("MXNet does not accept it")

    plain = mx.gluon.nn.Dense(3, in_units=4)
    plain.initialize()
    x = mx.nd.ones((2, 4))
    expected = plain(x).asnumpy()
    monkeypatch.setattr(compiled, "lift_traced", refused)
    net = graphopt.optimize(plain)
    np.testing.assert_array_equal(net(x).asnumpy(), expected)
    assert "not its graph: MXNet does not accept it" in net.explain()
    with pytest.raises(GraphError, match="does not accept"):
        graphopt.optimize(plain, strict=True)(x)


def test_arguments_that_fit_nothing_leave_open_shapes_open():
    plain = mx.gluon.nn.HybridSequential()
    plain.add(mx.gluon.nn.Dense(3), mx.gluon.nn.Dense(2, in_units=4))
    plain.initialize()
    with pytest.raises(InputError, match=r"inputs of node .* do not fit"):
        graphopt.optimize(plain)(mx.nd.ones((2, 5)))
    assert plain[0].weight.shape == (3, 0)
    assert plain[0](mx.nd.ones((2, 7))).shape == (2, 3)
