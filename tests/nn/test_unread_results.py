"""HybridBlocks around hybridized ones some of whose results they do not read.

To MXNet a hybridized Block is one operator: backward comes to all that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn, nd, autograd = mx.gluon.nn, mx.nd, mx.autograd


class Two(mx.gluon.HybridBlock):
    """Two results, of different parameters."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.read, self.unread = nn.Dense(4, in_units=4), nn.Dense(5, in_units=4)
            self.norm = nn.BatchNorm(in_channels=5)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.tanh(self.read(x)), F.tanh(self.norm(self.unread(x)))


class Around(mx.gluon.HybridBlock):
    """Not hybridized; it reads the first result of two."""

    def __init__(self, child: Callable[[], Any]) -> None:
        super().__init__()
        with self.name_scope():
            self.child, self.out = child(), nn.Dense(3, in_units=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.out(self.child(x)[0])


def made(*, optimized: bool, record: bool | None = None) -> tuple[Any, Any]:
    """A Block, and what is called of it."""
    mx.random.seed(3)
    net = Around(Two)
    net.initialize(mx.init.Xavier())
    net.child.hybridize()
    return net, graphopt.optimize(net, record=record) if optimized else net


def data(rows: int) -> Any:
    return nd.array(np.random.default_rng(rows).normal(size=(rows, 4)))


def trained(net: Any, call: Any) -> list[Any]:
    """All parameters behind steps with momentum and decay, in which all gradients are fresh."""
    settings = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.1}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", settings)
    for step in range(4):
        with autograd.record():
            loss = call(data(3 + step % 2)).square().sum()
        loss.backward()
        trainer.step(3)
    call(data(3))
    return [p.data().asnumpy() for p in net.collect_params().values()]


@pytest.mark.parametrize("record", [None, True, False])
def test_training_moves_what_lies_behind_an_unread_result(record: bool | None) -> None:
    want = trained(*made(optimized=False))
    found = trained(*made(optimized=True, record=record))
    for one, other in zip(want, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_gradients_are_zero_and_those_that_add_are_kept() -> None:
    net, fast = made(optimized=True)
    unread, read = net.child.unread.weight, net.child.read.weight
    unread.grad()[:] = 7
    with autograd.record():
        loss = fast(data(3)).sum()
    loss.backward()
    assert (unread.grad().asnumpy() == 0).all()
    assert (read.grad().asnumpy() != 0).any()
    assert len(fast.graph("training").outputs) == 2
    unread.grad_req = "add"
    unread.grad()[:] = 7
    with autograd.record():
        loss = fast(data(3)).sum()
    loss.backward()
    assert (unread.grad().asnumpy() == 7).all()


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_inference_and_files_have_what_is_returned_alone(tmp_path: Path) -> None:
    net, fast = made(optimized=True)
    want = fast(data(3)).asnumpy()
    with autograd.record():
        fast(data(3))
    assert len(fast.graph("inference").outputs) == 1
    fast.export(str(tmp_path / "net"))
    symbol = mx.sym.load(str(tmp_path / "net-symbol.json"))
    assert not {*symbol.list_inputs()} & {*net.child.unread.collect_params()}
    again = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    )
    np.testing.assert_allclose(again(data(3)).asnumpy(), want, rtol=1e-5, atol=1e-6)


def test_a_small_graph_is_no_operator_of_its_own() -> None:
    """MXNet takes it apart, so that nothing comes to what is not read."""

    class Small(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.one, self.other = nn.Dense(4, in_units=4), nn.Dense(4, in_units=4)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.one(x), self.other(x)

    net = Around(Small)
    net.initialize()
    net.child.hybridize()
    fast = graphopt.optimize(net)
    for call in (net, fast):
        net.child.other.weight.grad()[:] = 7
        with autograd.record():
            loss = call(data(3)).sum()
        loss.backward()
        assert (net.child.other.weight.grad().asnumpy() == 7).all()


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("hybridized", [False, True])
def test_results_of_a_symbol_block(*, hybridized: bool) -> None:
    """MXNet calls its graph as one operator, hybridized or not."""

    def heads() -> Any:
        x = mx.sym.var("data")
        layers = (mx.sym.FullyConnected(x, num_hidden=4, name=name) for name in "ab")
        return mx.gluon.SymbolBlock(mx.sym.Group([mx.sym.tanh(layer) for layer in layers]), [x])

    net = Around(heads)
    net.initialize()
    if hybridized:
        net.child.hybridize()
    fast = graphopt.optimize(net)
    net(data(3))
    params = net.child.collect_params()
    (unread,) = (parameter for name, parameter in params.items() if name.endswith("b_weight"))
    for call in (net, fast):
        unread.grad()[:] = 7
        with autograd.record():
            loss = call(data(3)).sum()
        loss.backward()
        assert (unread.grad().asnumpy() == 0).all()
