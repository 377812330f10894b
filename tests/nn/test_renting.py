"""Blocks that are called with more types of inputs than are worth compiling."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.nn import ski_rental

mx = import_mxnet()
nn = mx.gluon.nn


def net_and_plain(**settings: Any) -> tuple[Any, Any]:
    plain = nn.HybridSequential()
    plain.add(nn.Dense(8, activation="tanh", in_units=6), nn.Dense(3, in_units=8))
    plain.initialize(mx.init.Normal(0.5))
    return graphopt.optimize(plain, **settings), plain


def batch(rows: int) -> Any:
    return mx.nd.array(np.random.default_rng(rows).normal(size=(rows, 6)))


def compiled(net: Any) -> int:
    return len(net._graphopt_entries())


def test_the_first_are_compiled_and_the_others_are_right_and_learn() -> None:
    net, plain = net_and_plain()
    for rows in range(1, 2 * ski_rental.AT_ONCE + 1):
        x = batch(rows)
        np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert compiled(net) == ski_rental.AT_ONCE
    weight = plain[0].weight
    grads = []
    for run in (plain, net):
        with mx.autograd.record():
            loss = run(batch(99)).sum()
        loss.backward()
        grads.append(weight.grad().asnumpy().copy())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-5, atol=1e-6)
    assert compiled(net) == ski_rental.AT_ONCE
    told = net.explain()
    assert (
        f"{ski_rental.AT_ONCE + 1} calls with {ski_rental.AT_ONCE + 1} more types of inputs" in told
    )


def test_what_comes_often_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    net, plain = net_and_plain()
    for rows in range(1, ski_rental.AT_ONCE + 2):
        net(batch(rows))
    rule = net.graphopt_state.compiled.renting.rule
    monkeypatch.setattr(rule, "_compiling", 1e-9)
    x = batch(ski_rental.AT_ONCE + 1)
    net(x)  # the first of its calls does not count, the second takes longer than that
    assert compiled(net) == ski_rental.AT_ONCE
    np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert compiled(net) == ski_rental.AT_ONCE + 1
    assert rule.not_compiled == 0


def test_where_compiling_takes_long_the_second_of_a_kind_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, plain = net_and_plain()
    net(batch(4))
    rule = net.graphopt_state.compiled.renting.rule
    monkeypatch.setattr(rule, "_compiling", 100.0)
    for rows in (3, 2):
        x = batch(rows)
        np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert (compiled(net), rule.plain_calls) == (1, 2)
    with mx.autograd.record():
        net(batch(4))  # the first of another kind
    assert (compiled(net), rule.plain_calls) == (2, 2)


@pytest.mark.parametrize("settings", [{"strict": True}, {"max_shapes": {"data": (64, 6)}}])
def test_where_it_is_asked_for_all_are_compiled(settings: dict[str, Any]) -> None:
    net, _ = net_and_plain(**settings)
    for rows in range(1, ski_rental.AT_ONCE + 4):
        net(batch(rows))
    assert compiled(net) == ski_rental.AT_ONCE + 3


def test_parameters_are_read_anew() -> None:
    net, plain = net_and_plain()
    for rows in range(1, ski_rental.AT_ONCE + 2):
        net(batch(rows))
    x = batch(40)
    net(x)
    plain[0].weight.set_data(plain[0].weight.data() * 2)
    np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
    plain.cast("float64")
    x = x.astype("float64")
    np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-9)


class Beside(mx.gluon.HybridBlock):
    """Returns what it was given, too."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.conv = nn.Conv1D(4, 1, in_channels=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x, self.conv(x)


def test_gradients_of_inputs_that_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Beside()
    plain.initialize(mx.init.Normal(0.5))
    net = graphopt.optimize(plain)
    compiled = net.graphopt_state.compiled
    monkeypatch.setattr(compiled.renting.rule, "is_due", lambda *_, is_first, **__: is_first)
    monkeypatch.setattr(compiled.other_sizes, "find", lambda *_: None)  # what serves all sizes
    for extent in range(1, 4):
        x = mx.nd.array(np.random.default_rng(extent).normal(size=(2, 4, extent)))
        grads = []
        for run in (plain, net):
            x.attach_grad()  # of zeros
            with mx.autograd.record():
                same, other = run(x)
                loss = (same * same).sum() + (other * other).sum()
            loss.backward()
            grads.append([x.grad.asnumpy(), plain.conv.weight.grad().asnumpy()])
        for mine, theirs in zip(grads[1], grads[0], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    assert compiled.renting.rule.plain_calls == 2


def test_threads() -> None:
    net, plain = net_and_plain()
    for rows in range(1, ski_rental.AT_ONCE + 1):
        net(batch(rows))
    wrong: list[int] = []

    def call(start: int) -> None:
        for rows in range(start, start + 20):
            x = batch(rows)
            if not np.allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-4, atol=1e-5):
                wrong.append(rows)

    threads = [threading.Thread(target=call, args=(20 + n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_gradients_are_added_through_loops_of_ever_other_sizes() -> None:
    """MXNet's graphs of loops add to what they have not written; Python of a Block does not."""

    class Scaled(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def hybrid_forward(self, F, x, h, r):
            def body(row, state):
                new = F.tanh(F.broadcast_mul(row, F.expand_dims(r, 1)) + state)
                return new, new

            return F.contrib.foreach(body, x, h)

    net, plain = graphopt.optimize(Scaled()), Scaled()
    sizes = [(5, 3), (5, 4), (4, 4), (1, 3), *((steps, 1) for steps in range(2, 12))]
    for steps, rows in sizes:
        shapes = ((steps, rows, 4), (rows, 4), (rows,))
        generator = np.random.default_rng(rows)
        given = [mx.nd.array(generator.normal(size=shape)) for shape in shapes]
        found = []
        for which in (plain, net):
            for array in given:
                array.attach_grad("add")
            for _ in range(2):
                with mx.autograd.record():
                    emitted, last = which(*given)
                    loss = (emitted**2).sum() + last.sum()
                loss.backward()
            found.append([array.grad.asnumpy() for array in given])
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
