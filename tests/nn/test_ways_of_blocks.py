"""Blocks that cannot be called in every way, and Blocks that others call by a method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.nn.partition import tried_of
from graphopt.nn.ways import APART, PLAIN, RECORDED
from graphopt.recording import programs
from tests.nn.ways_support import ENOUGH, Residual, check, chosen, data, made

mx = import_mxnet()
nn = mx.gluon.nn

pytestmark = pytest.mark.usefixtures("forgotten")


class Counting(Residual):
    """Another number in each call."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * self.calls


def test_calls_that_differ_are_not_recorded(told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    plain, twin = made(Counting), made(Counting)
    twin.first, twin.second = plain.first, plain.second
    net = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        check(net, twin, data())
    assert chosen(net) == APART
    assert "recorded calls differ" in net.explain()


def test_long_programs_are_not_compiled(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    monkeypatch.setattr(programs, "MOST_CALLS", 3)
    plain = made()
    net = graphopt.optimize(plain)
    for _ in range(3):
        check(net, plain, data())
    assert chosen(net) == APART
    assert "one graph of 6 operators would take long" in net.explain()
    asked = graphopt.optimize(plain, record=True)
    check(asked, plain, data())
    assert len(asked._graphopt_entries()) == 1


class Failing(Residual):
    """Reads where an array lies, of which a recorded one knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_strict = False

    def forward(self, x: Any) -> Any:
        if self.is_strict:
            raise KeyError("the user's own")
        y = super().forward(x)
        if type(y) is not mx.nd.NDArray:
            raise TypeError("only NDArrays")
        return y


def test_a_block_that_fails_when_it_is_recorded_is_taken_apart(told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    plain = made(Failing)
    net = graphopt.optimize(plain)
    for _ in range(3):
        check(net, plain, data())
    assert chosen(net) == APART
    assert "as it fails recorded: only NDArrays" in net.explain()


class AsksForShape(mx.gluon.HybridBlock):
    """Once hybridized, MXNet cannot run it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, in_units=6)

    def hybrid_forward(self, _F: Any, x: Any) -> Any:  # noqa: N803 - Gluon's name
        return self.dense(x) * x.shape[0]


@pytest.mark.parametrize("rows", [[3], [3, 4]])
def test_a_block_that_fails_as_it_is_is_recorded(told: Any, rows: list[int]) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    plain = made(AsksForShape)
    want = [plain(data(count)).asnumpy() for count in rows]
    plain.hybridize()
    net = graphopt.optimize(plain)
    for call in range(ENOUGH):
        found = net(data(rows[call % len(rows)])).asnumpy()
        np.testing.assert_allclose(found, want[call % len(rows)], rtol=1e-4, atol=1e-5)
    assert chosen(net) == RECORDED
    assert "as it fails as it is: 'Symbol' object has no attribute 'shape'" in net.explain()


def test_errors_of_the_user_are_his(told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    plain = made(Failing)
    plain.is_strict = True
    net = graphopt.optimize(plain)
    for _ in range(3):
        with pytest.raises(KeyError, match="the user's own"):
            net(data())
    assert chosen(net) is None


def test_hooks_of_children_run_in_all_calls(told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    plain = made()
    net = graphopt.optimize(plain)
    seen: list[Any] = []
    plain.first.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(ENOUGH):
        net(data())
    assert len(seen) == ENOUGH


class Outer(mx.gluon.Block):
    """A plain Block with another one, called by a method."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.inner = Residual()

    def forward(self, x: Any) -> Any:
        return self.inner(x) + 1

    def loss(self, x: Any) -> Any:
        return (self(x) ** 2).mean()


def inner_of(net: Any) -> Any:
    """The view of a child, which is on trial or was."""
    return tried_of(net.graphopt_state.fallback.inner)


def test_blocks_that_methods_call_are_tried(told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    plain = made(Outer)
    net = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        np.testing.assert_allclose(net.loss(data()).asnumpy(), plain.loss(data()).asnumpy(), 1e-4)
    assert chosen(inner_of(net)) == RECORDED
    told_of_it = f"Residual {plain.inner.name!r}: inference: recorded, measured in its calls"
    assert told_of_it in net.explain()
    assert len(net._graphopt_entries()) == 1
    assert plain.inner.calls == 2 * ENOUGH


def test_hooks_of_blocks_that_methods_call_run(told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    plain = made(Outer)
    net = graphopt.optimize(plain)
    seen: list[Any] = []
    plain.inner.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(ENOUGH):
        net.loss(data())
    assert len(seen) == ENOUGH


def test_within_a_block_that_was_measured_nothing_else_is(told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 1.1, APART: 0.9})
    plain = made(Outer)
    net = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        check(net, plain, data())
    assert chosen(net) == APART
    assert not inner_of(net).graphopt_state.ways


def test_within_a_block_that_cannot_be_measured_others_are(
    monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    monkeypatch.setattr(programs, "MOST_CALLS", 6)  # as many as the one within has
    plain = made(Outer)
    net = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        check(net, plain, data())
    assert chosen(net) == APART
    assert chosen(inner_of(net)) == RECORDED


class OfManyPrograms(mx.gluon.Block):
    """Looks at ten values, so what it computes is ten programs and more."""

    def forward(self, x: Any) -> Any:
        for factor in range(2, 12):
            x = mx.nd.tanh(x * factor)
            float(x.sum().asscalar())
        return x


def test_more_programs_than_are_compiled_at_once_end_no_trial() -> None:
    net = OfManyPrograms()
    fast, x = graphopt.optimize(net), mx.nd.random.uniform(shape=(2, 3))
    for _ in range(60):
        np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-5)
    assert not fast.on_trial
    assert "differ from each other" not in fast.explain()
    assert "measured in its calls" in fast.explain()
