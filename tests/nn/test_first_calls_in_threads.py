"""Nets that several threads call at once before anything is compiled for them, or for them anew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.nn import optimized
from graphopt.nn.state import State

mx = import_mxnet()
nn = mx.gluon.nn

THREADS = 4


class Residual(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Layers with a temperature that its Python reads."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 1.0
        with self.name_scope():
            self.layers = nn.HybridSequential()
            for _ in range(8):
                self.layers.add(nn.Dense(6, activation="relu", in_units=6))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return (x + self.layers(x)) / self.temperature


def started() -> Any:
    net = Residual()
    net.initialize(mx.init.Xavier())
    return net


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """What calls return or raise, each in a thread of its own, and how a Block is named there."""
    together = threading.Barrier(len(calls))
    found: list[Any] = [None] * len(calls)

    def work(at: int) -> None:
        together.wait()
        try:
            result = calls[at]()
        except Exception as error:  # noqa: BLE001 - the test tells
            result = error
        found[at] = result, nn.Dense(2).name

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def assert_whole(views: list[Any], expected: list[np.ndarray[Any, Any]]) -> None:
    """They compute that, compiled whole, and leave the names of Blocks as they are."""
    x = mx.nd.ones((4, 6))
    found = at_once([lambda view=view: view(x).asnumpy() for view in views])
    for (result, name), want in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)
        assert name.startswith("dense")
    assert [view.graphopt_state.reason for view in views] == [""] * len(views)


@pytest.mark.parametrize("strict", [False, True])
def test_one_net(strict: bool) -> None:
    for _ in range(2):
        net = started()
        expected = net(mx.nd.ones((4, 6))).asnumpy()
        assert_whole([graphopt.optimize(net, strict=strict)] * THREADS, [expected] * THREADS)


def test_a_net_whose_attribute_was_set() -> None:
    for _ in range(2):
        net = started()
        fast = graphopt.optimize(net)
        fast(mx.nd.ones((4, 6)))
        net.temperature = 2.0
        expected = net(mx.nd.ones((4, 6))).asnumpy()
        assert_whole([fast] * THREADS, [expected] * THREADS)
        assert fast.graphopt_state.hasty == 1


def test_views_of_one_net() -> None:
    net = started()
    expected = net(mx.nd.ones((4, 6))).asnumpy()
    assert_whole([graphopt.optimize(net) for _ in range(THREADS)], [expected] * THREADS)


def test_a_net_and_its_child() -> None:
    net = started()
    parts = [net, net.layers] * (THREADS // 2)
    expected = [part(mx.nd.ones((4, 6))).asnumpy() for part in parts]
    assert_whole(list(map(graphopt.optimize, parts)), expected)


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads make what they know of a view at the same time."""
    together = threading.Barrier(2)

    def made(*args: Any) -> State:
        together.wait(timeout=60)
        return State(*args)

    monkeypatch.setattr(optimized, "State", made)


def known_by_two(ask: Callable[[], Any]) -> list[Any]:
    return [state for state, _ in at_once([ask, ask])]


@pytest.mark.usefixtures("meeting")
def test_threads_know_the_same_of_a_view() -> None:
    fast = graphopt.optimize(started())
    one, other = known_by_two(lambda: fast.graphopt_state)
    assert isinstance(one, State)
    assert one is other


@pytest.mark.parametrize("change", ["child", "attribute"])
def test_threads_know_the_same_of_a_view_that_changed(
    change: str, request: pytest.FixtureRequest
) -> None:
    net = started()
    fast = graphopt.optimize(net)
    fast(mx.nd.ones((4, 6)))
    before = fast.graphopt_state
    if change == "child":
        net.layers.add(nn.Dense(6, in_units=6))
    else:
        net.temperature = 3.0
    request.getfixturevalue("meeting")
    one, other = known_by_two(fast._graphopt_current)
    assert isinstance(one, State)
    assert one is other
    assert one is not before
