"""Forks while other threads are in the midst of something: the child does it itself."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphopt.backend.environment import environment
from graphopt.cached import cached_property
from graphopt.forking import lock
from tests.kernels.gate_support import python
from tests.places import REPOSITORY


@contextmanager
def another_thread(what: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Inside the block another thread is where ``what`` calls what it is given."""
    inside, over = threading.Event(), threading.Event()

    def stay() -> None:
        inside.set()
        over.wait(60)

    thread = threading.Thread(target=what, args=(stay,))
    thread.start()
    try:
        assert inside.wait(60)
        yield
    finally:
        over.set()
        thread.join()


def holds_in_child(condition: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if condition() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def test_what_another_thread_held_is_free() -> None:
    turn = lock()

    def hold(stay: Callable[[], None]) -> None:
        with turn, turn:
            stay()

    with another_thread(hold):
        assert not turn.acquire(blocking=False)
        assert holds_in_child(lambda: turn.acquire(blocking=False))
        assert not turn.acquire(blocking=False)


def test_what_the_thread_that_forks_holds_stays_its_own() -> None:
    turn = lock()

    def is_held() -> bool:
        found: list[bool] = []

        def ask(stay: Callable[[], None]) -> None:
            found.append(turn.acquire(blocking=False))
            stay()

        with another_thread(ask):
            pass
        turn.release()  # by whoever held it: else an error
        return found == [False]

    with turn:
        assert holds_in_child(is_held)


class Slow:
    def __init__(self) -> None:
        self.stay: Callable[[], None] = lambda: None
        self.computed = 0

    @cached_property
    def value(self) -> int:
        self.computed += 1
        self.stay()
        return 3


def test_properties_are_computed_once_and_without_a_lock() -> None:
    slow, other = Slow(), Slow()
    assert isinstance(vars(Slow)["value"], cached_property)
    assert Slow.value is vars(Slow)["value"]

    def compute(stay: Callable[[], None]) -> None:
        slow.stay = stay
        assert slow.value == 3

    with another_thread(compute):
        assert other.value == other.value == 3
        slow.stay = lambda: None
        assert holds_in_child(lambda: slow.value == 3)
    assert (slow.computed, other.computed) == (1, 1)


def test_every_property_of_ours_is_computed_without_a_lock() -> None:
    sources = (p for name in ("graphopt", "kernels", "passes") for p in files(REPOSITORY / name))
    with_lock = "from functools import.*cached_property|@functools[.]cached_property"
    found = [p.name for p in sources if re.search(with_lock, p.read_text())]
    assert found == ["cached.py"]


def files(folder: Path) -> Iterator[Path]:
    return (p for p in folder.rglob("*.py") if not p.is_symlink())


def test_the_environment_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_A", "1")
    monkeypatch.delenv("GRAPHOPT_B", raising=False)

    def change(stay: Callable[[], None]) -> None:
        with environment(GRAPHOPT_A="2"), environment(GRAPHOPT_A="3", GRAPHOPT_B="4"):
            stay()

    def is_put_back() -> bool:
        with environment(GRAPHOPT_B="5"):
            within = os.environ["GRAPHOPT_B"]
        return (within, told()) == ("5", ("1", None))

    with another_thread(change):
        assert told() == ("3", "4")
        assert holds_in_child(is_put_back)
        assert told() == ("3", "4")
    assert told() == ("1", None)


def told() -> tuple[str | None, str | None]:
    return os.environ.get("GRAPHOPT_A"), os.environ.get("GRAPHOPT_B")


COMPILES = """
import os, pkgutil, signal, sys, threading
import numpy as np
import graphopt
import mxnet as mx
from tests.kernels.gate_support import data, gate

signal.alarm(110)
owner, name = pkgutil.resolve_name(sys.argv[1]), sys.argv[2]
really, parent = getattr(owner, name), os.getpid()
inside, over = threading.Event(), threading.Event()

def slowly(*args, **kwargs):
    if os.getpid() == parent:
        inside.set()
        over.wait()
    return really(*args, **kwargs)

net, x = gate(), data(5, 4)
want = net(x).asnumpy()
fast = graphopt.optimize(net)
setattr(owner, name, slowly)
found = []
thread = threading.Thread(target=lambda: found.append(fast(x).asnumpy()), daemon=True)
thread.start()
assert inside.wait(60)
pid = os.fork()
if pid == 0:
    signal.alarm(60)  # ends one that hangs
    code = 1
    try:
        for each in (fast, graphopt.optimize(net)):
            np.testing.assert_allclose(each(x).asnumpy(), want, rtol=1e-5, atol=1e-6)
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
over.set()
thread.join()
np.testing.assert_allclose(found[0], want, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("tests.kernels.gate_support:Gate", "hybrid_forward"),
        ("graphopt.nn.compiled", "compile_graph"),
        ("graphopt.kernels.library", "_make"),
        ("graphopt.backend.lower", "choose"),
    ],
)
def test_a_net_that_another_thread_compiles(owner: str, name: str) -> None:
    python(COMPILES, owner, name)
