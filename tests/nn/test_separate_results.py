"""Nets of several heads that are not hybridized: backward from one leaves the others alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class TwoHeads(gluon.HybridBlock):
    """A trunk and two heads, one of which has statistics; or a head, and what it reads."""

    def __init__(self, keeps_trunk: bool = False, has_statistics: bool = True) -> None:
        super().__init__(prefix="net_")
        self.keeps_trunk = keeps_trunk
        with self.name_scope():
            self.trunk = nn.Dense(6, in_units=5, activation="tanh")
            self.left = nn.Dense(3, in_units=6)
            self.right = nn.HybridSequential()
            if has_statistics:
                self.right.add(nn.BatchNorm(in_channels=6))
            self.right.add(nn.Dense(2, in_units=6))

    def hybrid_forward(self, F, x):
        h = self.trunk(x)
        return (self.left(h), h) if self.keeps_trunk else (self.left(h), self.right(h))


def made(**more: Any) -> Any:
    mx.random.seed(3)
    net = TwoHeads(**more)
    net.initialize(mx.init.Xavier())
    return net


def learn(net: Any, turns: str) -> list[np.ndarray]:
    """The parameters after a step for each of the heads named; "b" is the sum of both."""
    options = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options)
    for number, turn in enumerate(turns):
        x = mx.nd.array(np.random.default_rng(number).normal(size=(4, 5)))
        with mx.autograd.record():
            left, right = net(x)
            losses = {"l": (left**2).mean(), "r": (right**2).mean()}
            loss = losses["l"] + losses["r"] if turn == "b" else losses[turn]
        loss.backward()
        trainer.step(1, ignore_stale_grad=True)
    return [p.data().asnumpy() for p in net.collect_params().values()]


@pytest.mark.parametrize("record", [None, True, False])
@pytest.mark.parametrize("turns", ["lrlrrl", "llll", "bbrb"])
def test_heads_that_learn_in_turns(turns: str, record: bool | None) -> None:
    want = learn(made(), turns)
    got = learn(graphopt.optimize(made(), record=record), turns)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_hybridized_it_is_one_operator() -> None:
    theirs, mine = made(), made()
    theirs.hybridize()
    mine.hybridize()
    fast = graphopt.optimize(mine)
    for got, want in zip(learn(fast, "lrl"), learn(theirs, "lrl"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert fast.receipts()
    assert not fast.graphopt_state.learns_in_python


def test_it_is_compiled_whole_where_nothing_learns() -> None:
    fast = graphopt.optimize(made())
    learn(fast, "lr")
    x = mx.nd.ones((4, 5))
    for got, want in zip(fast(x), made()(x), strict=True):
        assert got.shape == want.shape
    assert [entry.mode for entry in fast.graphopt_state.compiled.entries] == ["inference"]
    assert "hybridize() makes it one operator" in fast.explain()


@pytest.mark.parametrize("more", [{"strict": True}, {"memory": "1GB"}])
def test_it_is_compiled_whole_where_that_is_asked_for(more: dict[str, Any]) -> None:
    fast = graphopt.optimize(made(), **more)
    learn(fast, "bb")
    assert [entry.mode for entry in fast.graphopt_state.compiled.entries] == ["training"]


def test_a_result_that_reads_all_keeps_it_whole() -> None:
    want = learn(made(keeps_trunk=True), "lbl")
    fast = graphopt.optimize(made(keeps_trunk=True))
    for got, theirs in zip(learn(fast, "lbl"), want, strict=True):
        np.testing.assert_allclose(got, theirs, rtol=1e-4, atol=1e-5)
    assert [entry.mode for entry in fast.graphopt_state.compiled.entries] == ["training"]


def with_frozen_heads(turns: list[tuple[str, str]], *, optimized: bool, **more: Any) -> Any:
    """A net, and its gradients from 7 after steps by one head each, while one may be frozen."""
    net = made(has_statistics=False)
    if more:
        net.hybridize(**more)
    called = graphopt.optimize(net) if optimized else net
    found = []
    for number, (head, frozen) in enumerate(turns):
        for name in ("left", "right"):
            getattr(net, name).collect_params().setattr(
                "grad_req", "null" if name == frozen else "write"
            )
        learned = [p for p in net.collect_params().values() if p.grad_req != "null"]
        for p in learned:
            p.grad()[:] = 7
        x = mx.nd.array(np.random.default_rng(number).normal(size=(4, 5)))
        with mx.autograd.record():
            left, right = called(x)
            loss = ((left if head == "left" else right) ** 2).mean()
        loss.backward()
        found += [p.grad().asnumpy() for p in learned]
    return called, found


@pytest.mark.parametrize("more", [{}, {"static_alloc": True}])
@pytest.mark.parametrize("head", ["left", "right"])
def test_a_head_that_is_frozen_at_first(head: str, more: dict[str, bool]) -> None:
    other = "right" if head == "left" else "left"
    turns = [(other, head), (other, ""), (head, ""), (other, "")]
    _, want = with_frozen_heads(turns, optimized=False, **more)
    fast, got = with_frozen_heads(turns, optimized=True, **more)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert bool(fast.graphopt_state.learns_in_python) is not bool(more)


def test_heads_that_are_frozen_in_turns_are_compiled_whole() -> None:
    turns = [("left", "right"), ("right", "left")] * 2
    _, want = with_frozen_heads(turns, optimized=False)
    fast, got = with_frozen_heads(turns, optimized=True)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert [entry.mode for entry in fast.graphopt_state.compiled.entries] == ["training"]


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_a_symbol_block_is_one_operator() -> None:
    """To MXNet as well, hybridized or not."""

    def heads() -> Any:
        x = mx.sym.var("data")
        h = mx.sym.tanh(mx.sym.FullyConnected(x, num_hidden=6, name="h"))
        layers = [mx.sym.FullyConnected(h, num_hidden=4, name=name) for name in "lr"]
        net = gluon.SymbolBlock(mx.sym.Group(layers), [x])
        mx.random.seed(3)
        net.initialize(mx.init.Uniform(0.5))
        return net

    fast = graphopt.optimize(heads())
    for mine, theirs in zip(learn(fast, "lrl"), learn(heads(), "lrl"), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert [entry.mode for entry in fast.graphopt_state.compiled.entries] == ["training"]


def test_a_step_begins_at_all_losses() -> None:
    class Both(gluon.Block):
        def forward(self, heads, label):
            left, right = heads
            return (left**2).mean(axis=1), (right - label).mean(axis=1)

    net, loss = made(), Both()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = graphopt.train_step(net, loss, trainer)
    other = made()
    theirs = gluon.Trainer(other.collect_params(), "sgd", {"learning_rate": 0.1})
    x, label = mx.nd.ones((4, 5)), mx.nd.ones((4, 1))
    for _ in range(3):
        step(x, label)
        with mx.autograd.record():
            losses = loss(other(x), label)
        mx.autograd.backward(losses)
        theirs.step(4)
    for mine, want in zip(
        net.collect_params().values(), other.collect_params().values(), strict=True
    ):
        np.testing.assert_allclose(
            mine.data().asnumpy(), want.data().asnumpy(), rtol=1e-4, atol=1e-5
        )
