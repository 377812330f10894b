"""Blocks whose Python has to run: how long each way takes is told, what it computes is checked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.nn.ways import APART, PLAIN, RECORDED
from tests.nn.ways_support import ENOUGH, check, chosen, data, made

mx = import_mxnet()
nn = mx.gluon.nn

pytestmark = pytest.mark.usefixtures("forgotten")


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


def test_blocks_whose_children_are_hybridized_are_others(told: Any) -> None:
    """Their Python takes another time."""
    told({RECORDED: 0.5, PLAIN: 0.9, APART: 0.8})
    plain = made()
    first = graphopt.optimize(plain)
    for _ in range(ENOUGH):
        check(first, plain, data())
    assert chosen(first) == RECORDED
    plain.hybridize(static_alloc=True)
    told({RECORDED: 0.5, PLAIN: 0.1, APART: 0.2})
    second = graphopt.optimize(plain)
    for net in (second, first):
        for _ in range(ENOUGH):
            check(net, plain, data())
        assert chosen(net) == PLAIN


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
    for _ in range(2 * ENOUGH):
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


def test_where_it_is_asked_for_there_is_no_trial() -> None:
    plain = made()
    for settings in ({"record": False}, {"record": True}, {"strict": True}):
        net = graphopt.optimize(plain, **settings)
        check(net, plain, data())
        assert not net.graphopt_state.ways
    with pytest.raises(InputError, match="leave out record=True"):
        graphopt.optimize(plain, record=True, memory="1GB")


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


def test_what_is_hardly_true_is_timed_once_more(told: Any) -> None:
    times: dict[str, float] = {RECORDED: 1.0, PLAIN: 50.0, APART: 3.0}
    timed = told(times)
    plain = made()
    net = graphopt.optimize(plain)
    while timed.count(PLAIN) < 8:  # others had the cores meanwhile
        check(net, plain, data())
    times[PLAIN] = 0.5
    for _ in range(2 * ENOUGH):
        check(net, plain, data())
    assert timed.count(PLAIN) > 8
    assert chosen(net, "inference") == PLAIN
