"""Steps of several sizes: what is planned for other sizes may keep so much memory, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import plans
from graphopt.backend.engines import CachedOpEngine
from graphopt.backend.plans import Plans
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd


class Engine:
    def __init__(self, megabytes: int, last_call: int) -> None:
        self.planned_bytes, self.last_call = megabytes << 20, last_call

    def renew(self) -> None:
        self.planned_bytes = 0


def test_those_used_longest_ago_go_first() -> None:
    known = Plans()
    engines = [Engine(100, last_call) for last_call in (3, 1, 4, 2)]
    for engine in engines:
        known.make_room(engine)
    assert [engine.planned_bytes >> 20 for engine in engines] == [100, 0, 100, 100]
    known.make_room(Engine(1000, 5))
    assert [engine.planned_bytes >> 20 for engine in engines] == [100, 0, 100, 0]


def test_engines_that_are_gone_do_not_count() -> None:
    known = Plans()
    kept, gone = Engine(200, 1), Engine(200, 2)
    for engine in (kept, gone):
        known.make_room(engine)
    del engine, gone
    known.make_room(Engine(1, 3))
    assert kept.planned_bytes


def test_what_a_plan_keeps_is_what_forward_computes() -> None:
    x = mx.sym.var("x")
    engine = CachedOpEngine(mx.sym.exp(mx.sym.cast(x * 2, "float64")), ["x"])
    assert engine.planned_bytes == 0
    engine([mx.nd.ones((3, 5))])
    assert engine.planned_bytes == 15 * (4 + 8 + 8)
    engine.renew()
    assert engine.planned_bytes == 0


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[CachedOpEngine]:
    """Engines, once each time that they plan for a training step."""
    found: list[CachedOpEngine] = []
    make_room = Plans.make_room

    def noted(known: Plans, engine: CachedOpEngine) -> None:
        found.append(engine)
        make_room(known, engine)

    monkeypatch.setattr(Plans, "make_room", noted)
    return found


def convolutions() -> Any:
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        # Without a bias, and with unlike weights, no gradient is 0 but for what rounding leaves.
        first = nn.Conv2D(4, 3, in_channels=2, use_bias=False)
        net.add(first, nn.BatchNorm(in_channels=4), nn.Dense(3, in_units=4 * 6 * 6))
    mx.random.seed(1)
    net.initialize(mx.init.Uniform(0.1))
    return net


def images(batch: int) -> Any:
    return mx.nd.array(np.random.default_rng(batch).normal(size=(batch, 2, 8, 8)))


def learn(net: Any, batch: int) -> list[np.ndarray]:
    x = images(batch)
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    kept = net.collect_params().values()
    return [
        loss.asnumpy(),
        *((p.grad() if p.grad_req != "null" else p.data()).asnumpy() for p in kept),
    ]


@pytest.mark.parametrize(("most", "times"), [(plans.MOST_BYTES, 2), (0, 6)])
def test_steps_of_two_sizes_take_turns(
    most: int, times: int, planned: list[CachedOpEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MOST_BYTES", most)
    plain = convolutions()
    net = convolutions()
    fast = graphopt.optimize(net)
    for batch in (2, 3, 2, 3, 2, 3):
        for found, expected in zip(learn(fast, batch), learn(plain, batch), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert len(planned) == times
    assert sum(engine.planned_bytes > 0 for engine in {*planned}) == (1 if most == 0 else 2)


def test_two_tapes_of_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_BYTES", 0)
    net, plain = convolutions(), convolutions()
    fast = graphopt.optimize(net)
    for block, called in ((plain, plain), (net, fast)):
        for parameter in block.collect_params().values():
            if parameter.grad_req != "null":
                parameter.grad_req = "add"
        for _ in range(2):
            with autograd.record():
                losses = [(called(images(n)) ** 2).sum() for n in (2, 3)]
            autograd.backward(losses)
    for one, other in zip(
        net.collect_params().values(), plain.collect_params().values(), strict=True
    ):
        if one.grad_req != "null":
            np.testing.assert_allclose(
                one.grad().asnumpy(), other.grad().asnumpy(), rtol=1e-4, atol=1e-4
            )


def masked(F: Any, x: Any) -> Any:
    return F.contrib.boolean_mask(F.exp(x), F.sum(x, axis=1) > 0) ** 2


def looping(F: Any, x: Any) -> Any:
    parts, _ = F.contrib.while_loop(
        cond=lambda a: F.sum(a) < 100,
        func=lambda a: (F.sum(a), [a * a + 1]),
        loop_vars=[F.exp(x)],
        max_iterations=3,
    )
    return F.slice_axis(parts, axis=0, begin=0, end=1)  # those of steps not taken are anything


class Net(mx.gluon.HybridBlock):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.f(F, x)


@pytest.mark.parametrize("f", [masked, looping])
def test_shapes_that_are_known_once_they_ran(f: Callable[..., Any]) -> None:
    """MXNet tells them as unknown with shapes as of `mx.np`; of one batch nothing is left."""
    fast = graphopt.optimize(Net(f), strict=True)
    with mx.util.np_shape(True):
        for batch, least in ((2, -0.5), (3, -0.5), (3, -2), (2, -0.5), (5, -0.5)):
            data = np.random.default_rng(batch).uniform(least, least + 1.5, (batch, 4))
            found = []
            for net in (fast, Net(f)):
                x = mx.nd.array(data)
                x.attach_grad()
                with autograd.record():
                    y = net(x)
                y.backward()
                found.append((y.asnumpy(), x.grad.asnumpy()))
            for one, other in zip(*found, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4)


class Reading(mx.gluon.Block):
    """A Block that reads a value, so a step of it is two programs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2D(4, 3, in_channels=2), nn.Conv2D(3, 3, in_channels=4)

    def forward(self, x: Any) -> Any:
        found = mx.nd.tanh(self.first(x)) ** 2
        return self.second(found * (2 if float(found.sum().asscalar()) > 0 else 1)) ** 3


@pytest.mark.parametrize(("batches", "times"), [((2, 2, 2), 2), ((2, 3, 2, 3), 6)])
def test_programs_of_a_recorded_block(
    batches: tuple[int, ...],
    times: int,
    planned: list[CachedOpEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "MOST_BYTES", 0)
    net, plain = Reading(), Reading()
    for one in (net, plain):
        one.initialize(mx.init.Constant(0.3))
    fast = graphopt.optimize(net, record=True)
    for batch in batches:
        x = mx.nd.array(np.random.default_rng(batch).normal(size=(batch, 2, 8, 8)))
        found = []
        for block, called in ((net, fast), (plain, plain)):
            with autograd.record():
                loss = called(x).sum()
            loss.backward()
            found.append([p.grad().asnumpy() for p in block.collect_params().values()])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert len(planned) == times  # programs of one step leave each other's plans alone
