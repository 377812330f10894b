"""What choosing an engine computes is not computed again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import choosing
from graphopt.backend.candidates import Candidates
from graphopt.backend.choice import (
    CACHED_OP,
    CACHED_OP_ONEDNN,
    CONVOLUTION_KERNELS,
    EXECUTOR_ONEDNN,
    KERNELS,
    Choice,
)
from graphopt.backend.engines import ExecutorEngine
from graphopt.backend.kept import Kept
from graphopt.backend.lower import lower
from graphopt.backend.sorting import Once
from graphopt.compat import import_mxnet
from graphopt.demo import models

mx = import_mxnet()
gluon = mx.gluon


SIZE = {"layers": 1, "batch": 2, "length": 8, "width": 16, "heads": 2}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the executors that were called; the first of these is said to be the fastest."""
    made: list[str] = []
    run = ExecutorEngine.__call__

    def call(engine: ExecutorEngine, arrays: Sequence[Any]) -> list[Any]:
        made.append(engine.name)
        return run(engine, arrays)

    def race(engines: Iterable[str], *_: Any, **_options: Any) -> dict[str, float]:
        return {name: 1.0 if name == EXECUTOR_ONEDNN + KERNELS else 2.0 for name in engines}

    monkeypatch.setattr(ExecutorEngine, "__call__", call)
    monkeypatch.setattr(choosing, "race", race)
    monkeypatch.setattr(choosing, "remembered", lambda _parts: None)
    return made


def test_what_trying_computed_is_returned(calls: list[str]) -> None:
    example = models.encoder(**SIZE)
    (arguments,) = example.calls
    fast = graphopt.optimize(example.net, mode="inference")
    first = fast(*arguments)
    assert calls.count(EXECUTOR_ONEDNN + KERNELS) == 1
    calls.clear()
    second = fast(*arguments)
    assert calls == [EXECUTOR_ONEDNN + KERNELS]
    np.testing.assert_array_equal(first.asnumpy(), second.asnumpy())


@pytest.mark.parametrize(("seconds", "is_long"), [(0.4, False), (0.6, True)])
def test_fewer_engines_are_tried_where_calls_take_long(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, seconds: float, is_long: bool
) -> None:
    tried, run_once = list[str](), choosing.run_once

    def slowly(engine: Any, known: Any) -> Once:
        tried.append(engine.name)
        return replace(run_once(engine, known), seconds=seconds)

    monkeypatch.setattr(choosing, "run_once", slowly)
    example = models.encoder(**SIZE)
    graphopt.optimize(example.net, mode="inference")(*example.calls[0])
    assert tried[0] == CACHED_OP
    assert calls.count(EXECUTOR_ONEDNN + KERNELS) == 1
    assert (CACHED_OP + KERNELS in tried) == (not is_long)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_no_more_than_two_engines_of_a_heavy_net_are_kept(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """And what those that are let go of have packed goes with them."""
    fastest = {"first": CACHED_OP, "middle": EXECUTOR_ONEDNN, "last": CONVOLUTION_KERNELS}[place]
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(16, 3, in_channels=16), gluon.nn.Flatten(), gluon.nn.Dense(8))
    net.initialize()
    x = mx.nd.random.uniform(shape=(1, 16, 8, 8))
    want = net(x)
    engines: list[weakref.ref[Any]] = []
    kept: list[int] = []
    run_once = choosing.run_once

    def once(engine: Any, known: Any) -> Once:
        engines.append(weakref.ref(engine))
        kept.append(sum(made() is not None for made in engines))
        return run_once(engine, known)

    def race(raced: Iterable[str], *_: Any, **_options: Any) -> dict[str, float]:
        return {name: 1.0 if name == fastest else 2.0 for name in raced}

    monkeypatch.setattr(choosing, "run_once", once)
    monkeypatch.setattr(choosing, "race", race)
    monkeypatch.setattr(choosing, "remembered", lambda _parts: None)
    monkeypatch.setattr(choosing, "_HEAVY_BYTES", 0)
    fast = graphopt.optimize(net, mode="inference")
    np.testing.assert_allclose(fast(x).asnumpy(), want.asnumpy(), rtol=1e-4, atol=1e-5)
    lowered = fast.graphopt_state.compiled.entries[-1].lowered
    assert lowered.choice.engine == fastest
    assert set(lowered.choice.measured_ms) == {CACHED_OP, EXECUTOR_ONEDNN, CONVOLUTION_KERNELS}
    assert kept == [1, 2, 2]
    assert sum(made() is not None for made in engines) == 1
    np.testing.assert_allclose(fast(x).asnumpy(), want.asnumpy(), rtol=1e-4, atol=1e-5)


def test_others_are_tried_where_what_was_the_fastest_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise mx.MXNetError("not this time")

    found = {
        "engine": CONVOLUTION_KERNELS,
        "measured_ms": {CONVOLUTION_KERNELS: 1.0},
        "told": "",
        "json": "",  # no order that takes less memory
    }
    monkeypatch.setattr(choosing, "remembered", lambda _parts: found)
    monkeypatch.setattr("graphopt.backend.candidates.with_packed", fail)
    net = gluon.nn.Conv2D(16, 3, in_channels=16)
    net.initialize()
    x = mx.nd.random.uniform(shape=(1, 16, 8, 8))
    fast = graphopt.optimize(net, mode="inference")
    np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-5)
    choice = fast.graphopt_state.compiled.entries[-1].lowered.choice
    assert choice.failed == {CONVOLUTION_KERNELS: "not this time"}
    assert not choice.is_remembered
    assert choice.engine in choice.measured_ms


@pytest.mark.parametrize("engine", [CACHED_OP, CACHED_OP_ONEDNN, EXECUTOR_ONEDNN])
def test_an_engine_is_made_and_called_for_a_part_of_an_array(engine: str) -> None:
    """Of one that a convolution has left in blocks, which oneDNN cannot read a part of."""
    first, net = (gluon.nn.Conv2D(16, 3, in_channels=16, activation="relu") for _ in range(2))
    for each in (first, net):
        each.initialize()
    whole = first(mx.nd.random.uniform(shape=(4, 16, 12, 12)))
    want = net(whole[1:3])
    graph = graphopt.lift(net, shapes={"data": (2, 16, 10, 10)})
    params = {name: parameter.data() for name, parameter in net.collect_params().items()}
    run = lower(graph, params, engine=engine)
    for part in (whole[1:3], whole[0:2], whole[1:3]):
        (found,) = run(part)
    np.testing.assert_allclose(found.asnumpy(), want.asnumpy(), rtol=1e-4, atol=1e-5)


def test_what_a_candidate_packed_is_let_go_of_unless_another_reads_it() -> None:
    form = SimpleNamespace(ctx=mx.cpu())
    fixed: dict[str, Any] = {"weight": mx.nd.zeros(2)}
    candidates = Candidates(form, fixed, Choice())  # type: ignore[arg-type]
    arrays = {name: mx.nd.zeros(2) for name in "abc"}
    candidates._note("one", {name: arrays[name] for name in "ab"})
    candidates._note("other", {name: arrays[name] for name in "bc"})
    candidates.keepers = [Kept(array) for array in arrays.values()]
    candidates.forget("one", [SimpleNamespace(inputs=["b", "c", "data"])])  # type: ignore[list-item]
    assert fixed.keys() == {"weight", "b", "c"}
    assert {id(keeper.array) for keeper in candidates.keepers} == {id(fixed["b"]), id(fixed["c"])}
    candidates.forget("one", [])
    assert fixed.keys() == {"weight", "b", "c"}


class Noisy(gluon.HybridBlock):
    """A net that draws random numbers in inference, or nothing else."""

    def __init__(self, *, is_all: bool) -> None:
        super().__init__()
        self.is_all = is_all
        with self.name_scope():
            self.dense = gluon.nn.Dense(16, in_units=8)

    def hybrid_forward(self, F, x):
        noise = F.random.normal(shape=(4, 16))
        return noise if self.is_all else F.tanh(self.dense(x) * noise) + 1


@pytest.mark.parametrize("is_all", [False, True])
def test_a_seed_gives_the_same_where_engines_are_measured(is_all: bool) -> None:
    net, x = Noisy(is_all=is_all), mx.nd.ones((4, 8))
    net.initialize()
    fast = graphopt.optimize(net, mode="inference")
    found = []
    for called in (net, fast, fast):
        mx.random.seed(5)
        outputs = [called(x).asnumpy() for _ in range(2)]
        found.append([*outputs, mx.nd.random.uniform(shape=(3,)).asnumpy()])
    for others in found[1:]:
        for plain, other in zip(found[0], others, strict=True):
            np.testing.assert_allclose(other, plain, rtol=1e-4, atol=1e-6)
