"""Blocks whose Python has to run: how long each way takes is told, what it computes is checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.nn import ways
from graphopt.nn.partition import tried_of
from graphopt.nn.ways import APART, PLAIN, RECORDED
from graphopt.recording import programs

mx = import_mxnet()
nn = mx.gluon.nn

#: Calls after which any trial has ended.
ENOUGH = 40


class Residual(mx.gluon.Block):
    """A plain Block with code of its own between its children."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.Dense(6, activation="tanh", in_units=6)
            self.second = nn.Dense(6, in_units=6)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return mx.nd.sin(self.second(self.first(x)) + x) * x.shape[1]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """What is remembered lasts as long as a test."""
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(ways, "remembered", kept.get)
    monkeypatch.setattr(ways, "remember", kept.__setitem__)
    return kept


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, float]], list[str]]:
    """Have calls take as long as told, by their way; gives a list of those that were timed."""

    def use(times: Mapping[str, float]) -> list[str]:
        timed: list[str] = []

        def note(self: ways.Ways, way: str, _start: float) -> None:
            timed.append(way)
            self.best_ms[way] = times[way]

        monkeypatch.setattr(ways.Ways, "_note", note)
        return timed

    return use


def made(cls: type = Residual) -> Any:
    block = cls()
    block.initialize(mx.init.Normal(0.5))
    return block


def data(rows: int = 3) -> Any:
    return mx.nd.array(np.random.default_rng(rows).normal(size=(rows, 6)))


def check(net: Any, plain: Any, x: Any) -> None:
    np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-4, atol=1e-5)


def check_step(net: Any, plain: Any, x: Any) -> None:
    found = []
    for block in (net, plain):
        with mx.autograd.record():
            y = block(x)
        y.backward()
        grads = [p.grad().asnumpy() for p in plain.collect_params().values()]
        found.append([y.asnumpy(), *grads])
    for got, right in zip(*found, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


def chosen(net: Any, mode: str = "inference") -> str | None:
    return net.graphopt_state.ways[mode].chosen


@pytest.mark.parametrize(
    ("times", "way"),
    [
        ({RECORDED: 1, PLAIN: 2}, RECORDED),
        ({RECORDED: 1, PLAIN: 1.1, APART: 0.9}, APART),
        ({RECORDED: 1, PLAIN: 1.1, APART: 1.2}, RECORDED),
        ({RECORDED: 1, PLAIN: 0.9, APART: 1}, PLAIN),
    ],
)
@pytest.mark.parametrize("run", [check, check_step])
def test_the_fastest_way_is_taken(told: Any, run: Any, times: Any, way: str) -> None:
    timed = told(times)
    plain = made()
    net = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        run(net, plain, data())
    mode = "inference" if run is check else "training"
    assert chosen(net, mode) == way
    assert set(timed) == set(times)
    state = net.graphopt_state
    assert (state.recorded is not None) == (way == RECORDED)
    assert (state.fallback is not None) == (way == APART)
    text = net.explain()
    assert f"{mode}: {way}, measured in its calls: recorded 1 ms" in text
    assert "is no HybridBlock" in text
    assert plain.calls == 2 * ENOUGH  # nothing is computed twice
    before = len(timed)
    for _ in range(3):
        run(net, plain, data(5))  # of whatever shape
    assert len(timed) == before
    assert chosen(net, mode) == way


def test_whether_calls_are_on_trial_is_told(told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    net = graphopt.optimize(made())
    assert not net.on_trial
    seen = []
    for _ in range(ENOUGH):
        net(data())
        seen.append(net.on_trial)
    assert (seen[0], seen[-1]) == (True, False)
    assert seen == sorted(seen, reverse=True)
    whole = graphopt.optimize(nn.Dense(3, in_units=6))
    whole.initialize()
    whole(data())
    assert not whole.on_trial


def test_each_mode_has_its_own(told: Any) -> None:
    times = {RECORDED: 1.0, PLAIN: 2.0}
    told(times)
    plain = made()
    net = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        check(net, plain, data())
    times.update({PLAIN: 0.5, APART: 0.7})
    for _ in range(ENOUGH):
        check_step(net, plain, data())
    assert (chosen(net), chosen(net, "training")) == (RECORDED, PLAIN)
    check(net, plain, data())


@pytest.mark.parametrize("recorded", [0.5, 1.0])
def test_that_recording_is_the_fastest_is_remembered(told: Any, recorded: float) -> None:
    """What else was chosen may have been so because of what else ran: it is tried again."""
    told({RECORDED: recorded, PLAIN: 0.9, APART: 0.8})
    plain = made()
    first = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        check(first, plain, data())
    timed = told({RECORDED: 0.1, PLAIN: 0.9, APART: 0.5})
    second = graphopt.optimize(plain)
    for _ in range(3):
        check(second, plain, data())
    assert chosen(second) == (RECORDED if recorded == 0.5 else None)
    assert not timed


def test_a_call_of_another_type_does_not_matter(told: Any) -> None:
    """As the last batch of an epoch; two in a row are what is called for now."""
    timed = told({RECORDED: 1.0, PLAIN: 2.0})
    plain = made()
    net = graphopt.optimize(plain)
    for _ in range(8):
        check(net, plain, data(2))
    before = len(timed)
    check(net, plain, data(7))
    assert len(timed) == before
    assert chosen(net) is None
    for _ in range(ENOUGH):
        check(net, plain, data(7))
    assert chosen(net) == RECORDED


@pytest.mark.parametrize(("plain_ms", "way"), [(2.0, APART), (0.5, PLAIN)])
def test_ever_other_types_are_not_recorded(told: Any, plain_ms: float, way: str) -> None:
    told({RECORDED: 1.0, PLAIN: plain_ms, APART: 1.0})
    plain = made()
    net = graphopt.optimize(plain)
    for rows in range(1, 2 * ENOUGH):
        check(net, plain, data(rows))
    assert chosen(net) == way
    assert "with ever other types of arguments" in net.explain()


def test_of_ever_other_types_medians_tell() -> None:
    plain = made()
    net = graphopt.optimize(plain)
    for rows in range(1, 2 * ENOUGH):
        check(net, plain, data(rows))
    (trial,) = net.graphopt_state.ways.values()
    assert {*trial.best_ms} == {PLAIN, APART}
    assert trial.chosen in trial.best_ms


def test_children_are_tried_where_recording_them_is_much_of_a_call(told: Any) -> None:
    told({RECORDED: 0.1, PLAIN: 1.0, APART: 0.05})
    plain = made()
    net = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        check(net, plain, data())
    assert chosen(net) == APART


@pytest.mark.parametrize("turns", [(3, 5), (3, 3, 5, 5), (3, 5, 5)])
def test_two_types_may_take_turns(told: Any, turns: tuple[int, ...]) -> None:
    told({RECORDED: 1.0, PLAIN: 2.0})
    plain = made()
    net = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        for rows in turns:
            check(net, plain, data(rows))
    assert chosen(net) == RECORDED


def test_the_trial_goes_on_with_what_comes_for_good(told: Any) -> None:
    timed = told({RECORDED: 1.0, PLAIN: 2.0})
    plain = made()
    net = graphopt.optimize(plain)
    for _ in range(6):
        check(net, plain, data(3))
    before = len(timed)
    for _ in range(2 * ENOUGH):
        check(net, plain, data(5))
    assert chosen(net) == RECORDED
    assert len(timed) > before


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


def test_where_it_is_asked_for_there_is_no_trial() -> None:
    plain = made()
    for settings in ({"record": False}, {"record": True}, {"strict": True}):
        net = graphopt.optimize(plain, **settings)
        check(net, plain, data())
        assert not net.graphopt_state.ways
    with pytest.raises(InputError, match="leave out record=True"):
        graphopt.optimize(plain, record=True, memory="1GB")


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


@pytest.fixture
def numpy_arrays() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


@pytest.mark.usefixtures("numpy_arrays")
def test_numpy_arrays(told: Any) -> None:
    class Scaled(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(6, in_units=6)

        def forward(self, x: Any) -> Any:
            return mx.npx.relu(self.dense(x)) / x.shape[0] + mx.np.exp(x)

    told({RECORDED: 1.0, PLAIN: 1.1, APART: 0.9})
    plain = made(Scaled)
    net = graphopt.optimize(plain)
    x = mx.np.array(np.ones((3, 6), "float32"))
    for _ in range(ENOUGH):
        check(net, plain, x)
    assert type(net(x)) is mx.np.ndarray
    assert chosen(net) == APART


def test_threads(told: Any) -> None:
    told({RECORDED: 1.0, PLAIN: 1.1, APART: 1.2})
    plain = made()
    net = graphopt.optimize(plain)
    x = data()
    want = plain(x).asnumpy()
    wrong: list[Any] = []

    def call() -> None:
        for _ in range(ENOUGH):
            try:
                found = net(x).asnumpy()
            except Exception as error:  # noqa: BLE001 - told in the main thread
                wrong.append(error)
                return
            if not np.allclose(found, want, rtol=1e-4, atol=1e-5):
                wrong.append(found)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for _ in range(ENOUGH):  # calls beside one on trial are no part of it
        net(x)
    assert chosen(net) == RECORDED
