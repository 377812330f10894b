"""Small nets that threads and forked children run forward and backward, also for the first time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.engines import CachedOpEngine
from graphopt.backend.pushing import TURN
from graphopt.compat import import_mxnet
from tests.backend.learning_support import Net, assert_same, gate, learnt, noise, normed

mx = import_mxnet()


def all_at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each returns, called by a thread of its own when all threads are there."""
    start, found = threading.Barrier(len(calls)), dict[int, Any]()

    def work(i: int) -> None:
        start.wait()
        found[i] = calls[i]()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in range(len(calls))]


def test_threads_call_one_net() -> None:
    net = Net(normed)
    fast = graphopt.optimize(net)

    def steps(i: int, one: Any, times: int) -> list[list[Any]]:
        return [learnt(one, noise(4, 8, seed=i), noise(8, seed=i)) for _ in range(times)]

    found = all_at_once([lambda i=i: steps(i, fast, 20) for i in range(4)])
    for i, results in enumerate(found):
        (want,) = steps(i, net, 1)
        for got in results:
            assert_same(got, want)


def test_a_forked_child_calls_it() -> None:
    fast = graphopt.optimize(Net(gate))
    x, w = noise(4, 8), noise(8)
    want = learnt(fast, x, w)
    child = os.fork()
    if child == 0:
        got = learnt(fast, x, w)
        os._exit(0 if all(map(np.allclose, got, want)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def masked(x: Any) -> Any:
    """A graph for whose results MXNet waits, which has a turn of its own."""
    return mx.sym.contrib.boolean_mask(x, x.sum(axis=1) > 0)


@pytest.mark.parametrize("function", [mx.sym.tanh, masked])
def test_a_child_that_is_forked_during_a_first_call(function: Any) -> None:
    x = mx.nd.ones((4, 8))
    engine = CachedOpEngine(function(mx.sym.var("x")), ["x"])
    want = np.ones((4, 8)) if function is masked else np.tanh(np.ones((4, 8)))
    taken, over = threading.Event(), threading.Event()

    def first_call() -> None:
        with engine._turn:  # where another thread was when the process was forked
            taken.set()
            # Who forks waits until nobody is in the midst of a turn that all share.
            over.wait(0.2 if engine._turn is TURN else None)

    thread = threading.Thread(target=first_call)
    thread.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if np.allclose(engine([x])[0].asnumpy(), want) else 1)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_threads_call_it_first_with_different_shapes() -> None:
    shapes = [(rows, 8) for rows in (1, 2, 3, 4)] * 2
    want = [Net(normed)(noise(*shape), noise(8)).asnumpy() for shape in shapes]
    for _ in range(5):
        fast = graphopt.optimize(Net(normed))
        calls = [lambda s=shape, f=fast: f(noise(*s), noise(8)).asnumpy() for shape in shapes]
        assert_same(all_at_once(calls), want)
