"""Which threads wait for each other before they trace Blocks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.frontend.alone import traced_alone

nn = import_mxnet().gluon.nn


def stack(*children: Any) -> Any:
    net = nn.HybridSequential()
    net.add(*children)
    return net


@contextmanager
def elsewhere(block: Any) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Another thread that comes to trace a Block: when it has its turn, and when it may end it."""
    begun, may_end = threading.Event(), threading.Event()

    def trace() -> None:
        with traced_alone(block):
            begun.set()
            may_end.wait()

    thread = threading.Thread(target=trace)
    thread.start()
    try:
        yield begun, may_end
    finally:
        may_end.set()
        thread.join()


def assert_one_at_a_time(first: Any, then: Any) -> None:
    with elsewhere(first) as (begun, may_end):
        assert begun.wait(60)
        with elsewhere(then) as (later, _):
            assert not later.wait(0.2)
            may_end.set()
            assert later.wait(60)


def test_a_block_and_one_in_it() -> None:
    inner = nn.Dense(2)
    outer = stack(inner)
    assert_one_at_a_time(outer, inner)
    assert_one_at_a_time(inner, outer)


def test_views_of_one_block() -> None:
    net = stack()
    assert_one_at_a_time(graphopt.optimize(net), graphopt.optimize(net))


def test_blocks_with_nothing_in_common() -> None:
    with traced_alone(stack(nn.Dense(2))), elsewhere(stack(nn.Dense(2))) as (begun, _):
        assert begun.wait(60)


def test_a_thread_that_is_at_it() -> None:
    """What it traces within leaves the turn as it was."""
    net = stack(nn.Dense(2))
    with ExitStack() as turn:
        turn.enter_context(traced_alone(net))
        with traced_alone(net[0]), traced_alone(net):
            pass
        with elsewhere(net[0]) as (begun, _):
            assert not begun.wait(0.2)
            turn.close()
            assert begun.wait(60)


def test_what_fails_ends_its_turn() -> None:
    net = stack()
    with pytest.raises(ValueError, match="fault"), traced_alone(net):
        raise ValueError("fault")
    with elsewhere(net) as (begun, _):
        assert begun.wait(60)


def test_a_child_does_not_wait_for_a_thread_it_has_not() -> None:
    net = stack()
    with elsewhere(net) as (begun, _):
        assert begun.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            with traced_alone(net):
                os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
