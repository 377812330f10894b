"""Attributes that Python of Blocks reads, set between calls, or in them."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.nn.optimized import CALLS_OF_A_SETTING, HASTY_CHANGES
from graphopt.nn.settings import settings_read
from tests.nn.settings_support import Constant, Net, Scaled, check, data

mx = import_mxnet()
nn = mx.gluon.nn


@pytest.mark.parametrize(
    "values",
    [
        [2.0, 3.0],
        [np.float32(2), np.float32(3)],
        [[2.0], [3.0]],
        [{0: [2.0]}, {0: [3.0]}],
        [lambda x: x, lambda x: x * x],
        [2.0, [3.0], np.ones(())],
    ],
    ids=["numbers", "numpy", "lists", "dicts", "functions", "kinds"],
)
def test_a_value_that_is_set_is_followed(values: list[Any]) -> None:
    plain = Net()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    for value in values:
        plain.inner[0].by = value
        check(fast, plain)
        check(fast, plain)
    assert not fast.graphopt_state.reason


def test_a_list_that_is_written_into_is_followed() -> None:
    plain = Net()
    plain.inner[0].by = [2.0]
    fast = graphopt.optimize(plain)
    check(fast, plain)
    plain.inner[0].by[0] = 3.0
    check(fast, plain)


def test_an_attribute_that_is_taken_away_is_followed() -> None:
    plain = Net()
    plain.inner[0].by = 2.0
    fast = graphopt.optimize(plain)
    check(fast, plain)
    del plain.inner[0].by
    check(fast, plain)


def test_rates_of_mxnets_layers_are_followed() -> None:
    plain = nn.HybridSequential()
    plain.add(nn.Dropout(0.5))
    fast = graphopt.optimize(plain)
    for rate in (0.5, 0.1, 0.9):
        plain[0]._rate = rate
        with mx.autograd.record():
            zeros = (fast(mx.nd.ones((100, 100))) == 0).mean().asscalar()
        assert abs(zeros - rate) < 0.05


def test_one_that_changes_all_along_is_not_compiled_in() -> None:
    plain = Net()
    fast = graphopt.optimize(plain)
    for number in range(2 * HASTY_CHANGES + 2):
        plain.inner[0].by = float(number)
        check(fast, plain)
    assert "'by' of Scaled changes from call to call" in fast.explain()


def test_one_that_changes_now_and_then_is() -> None:
    plain = Net()
    fast = graphopt.optimize(plain)
    for number in range(2 * HASTY_CHANGES):
        plain.inner[0].by = float(number)
        for _ in range(CALLS_OF_A_SETTING + 1):
            fast(data())
        check(fast, plain)
        assert fast._graphopt_entries()


def test_hybridized_nets_keep_them_as_in_mxnet() -> None:
    plain = Net()
    plain.hybridize()
    fast = graphopt.optimize(plain)
    for by in (1.0, 2.0, 3.0):
        plain.inner[0].by = by
        check(fast, plain)


def test_children_of_a_plain_block_are_followed() -> None:
    class Setting(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x: Any, by: float) -> Any:
            self.scaled.by = by
            return self.scaled(x)

    plain = Setting()
    for options in ({}, {"record": False}, {"record": True}):
        fast = graphopt.optimize(plain, **options)
        for number in range(40):
            by = (1.0, 2.0, 1.0, 3.0)[number % 4]
            found, want = fast(data(), by).asnumpy(), plain(data(), by).asnumpy()
            np.testing.assert_allclose(found, want, rtol=1e-5)


class Many(Scaled):
    """Reads several."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x * self.by[0] * self.other * self.new * self.object.by


def test_what_is_restored() -> None:
    block, held = Many(), [1, {2: 3}]
    block.by, block.other = held, "a"
    block.object = held_object = Constant(1.0)
    before = settings_read(block)
    held[1][2], block.new = 4, 5
    del block.other
    assert before.changed() == ["'by' of Many", "'new' of Many", "'other' of Many"]
    held_object.by = 2.0
    before.restore()
    assert held_object.by == 1.0
    assert block.by is held
    assert (held, block.other) == ([1, {2: 3}], "a")
    assert not hasattr(block, "new")
    assert before.are_same()


def test_what_nobody_reads_may_change() -> None:
    class Logged(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.meter, self.history = Constant(0.0), []

        def log(self) -> None:
            self.meter.total = len(self.history)

    fast = graphopt.optimize(Logged())
    for number in range(2 * HASTY_CHANGES + 2):
        fast.history.append(number)
        fast.meter.total = number
        fast(data())
    assert fast._graphopt_entries()
    assert not fast.graphopt_state.reason


@pytest.mark.parametrize("base", [mx.gluon.Block, mx.gluon.HybridBlock])
def test_an_object_that_is_dropped_is_let_go_of(base: Any) -> None:
    class Reading(base):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return mx.nd.tanh(x) * (self.data.by if self.data else 2)

    net = Reading()
    net.data = Constant(1.0)
    known = weakref.ref(net.data)
    fast = graphopt.optimize(net)
    fast(data())
    net.data = None
    fast(data())
    assert known() is None


def test_layers_in_lists_are_followed() -> None:
    class Listed(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Activation("tanh"), nn.Activation("relu")
            self.order, self.path = [self.one, self.two], {"last": self.one}

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            for layer in self.order:
                x = layer(x - 0.1)
            return self.path["last"](x)

    plain = Listed()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    plain.order.reverse()
    check(fast, plain)
    plain.path["last"] = plain.two
    check(fast, plain)
    plain.order = []
    check(fast, plain)


def test_a_schedule_with_planned_memory() -> None:
    plain = nn.HybridSequential()
    plain.add(nn.Dense(4, in_units=3), Scaled())
    plain.initialize()
    fast = graphopt.optimize(plain, memory="10MB")
    for number in range(2 * HASTY_CHANGES + 2):
        plain[1].by = float(number)
        with mx.autograd.record():
            found = fast(data())
        found.backward()
        np.testing.assert_allclose(found.asnumpy(), plain(data()).asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("units", [3, 400])
def test_steps_follow_them(units: int) -> None:
    def losses(*, optimized: bool) -> list[float]:
        mx.random.seed(2)
        net, loss = nn.HybridSequential(prefix="n_"), mx.gluon.loss.L2Loss()
        with net.name_scope():
            net.add(nn.Dense(units, in_units=3), Scaled(), nn.Dense(3, in_units=units))
        net.initialize(mx.init.Normal(0.3))
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.001})
        step = graphopt.train_step(net, loss, trainer) if optimized else None
        found = []
        for number in range(12):
            net[1].by = 1.0 + number // 3
            if step is None:
                with mx.autograd.record():
                    error = loss(net(data()), data() * 2)
                error.backward()
                trainer.step(2)
            else:
                error = step(data(), data() * 2)
            found.append(error.mean().asscalar())
        return found

    np.testing.assert_allclose(losses(optimized=True), losses(optimized=False), rtol=1e-4)
