"""What MXNet planned is freed by the thread that used it last, when no tape has it any more."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import graphopt
from graphopt.backend import retiring
from graphopt.backend.engines import CachedOpEngine, ExecutorEngine
from graphopt.backend.invoke import invoke
from graphopt.backend.pools import Bound, Pools
from graphopt.backend.step import bind
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()
FREED = "MXFreeCachedOp", "MXExecutorFree"


@pytest.fixture(autouse=True)
def freed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which plans were freed from now on, one for each."""
    monkeypatch.setattr(retiring, "_A_WHILE_S", 0.0)
    retiring.free_retired()
    found: list[int] = []
    for name in FREED:
        free = getattr(mx.base._LIB, name)

        def noted(handle: Any, free: Callable[[Any], int] = free) -> int:
            found.append(threading.get_ident())
            return free(handle)

        monkeypatch.setattr(mx.base._LIB, name, noted)
    return found


def engine() -> CachedOpEngine:
    return CachedOpEngine(mx.sym.var("x") * mx.sym.var("w"), ["x"])


def arrays() -> list[Any]:
    found = [mx.nd.ones((2, 3)), mx.nd.ones((2, 3))]
    found[1].attach_grad()
    return found


def in_a_thread(run: Callable[[], object]) -> int | None:
    thread = threading.Thread(target=run)
    thread.start()
    return ended(thread)


def ended(thread: threading.Thread) -> int | None:
    """Its number, once Python knows no more of it, which is shortly after it has ended."""
    thread.join()
    while thread.ident in sys._current_frames():
        time.sleep(0.001)
    return thread.ident


def executor_engine() -> ExecutorEngine:
    return ExecutorEngine(mx.sym.var("x") * mx.sym.var("w"), arrays(), ["x"], mx.cpu(), "executor")


@pytest.mark.parametrize("make", [engine, executor_engine])
def test_what_nobody_has_is_freed_at_once(make: Callable[[], Any], freed: list[int]) -> None:
    made = make()
    made(arrays())
    del made
    assert freed == [threading.get_ident()]


@pytest.mark.parametrize("make", [engine, executor_engine])
def test_another_thread_leaves_it_to_the_last_user(
    make: Callable[[], Any], freed: list[int]
) -> None:
    kept = [make()]
    kept[0](arrays())
    in_a_thread(kept.clear)
    assert freed == []
    in_a_thread(retiring.free_retired)
    assert freed == []
    retiring.free_retired()
    assert freed == [threading.get_ident()]


def small_engine() -> Any:
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize()
    fast = graphopt.optimize(net)
    x = mx.nd.ones((2, 4))
    fast(x)
    assert "calling thread" in fast.explain()
    return lambda _: fast(x)


@pytest.mark.parametrize("serve", [engine, executor_engine, small_engine])
def test_a_server_frees_what_was_dropped_while_it_waited(
    serve: Callable[[], Any], freed: list[int]
) -> None:
    kept, other = [executor_engine()], serve()
    is_used, is_dropped = threading.Event(), threading.Event()

    def work() -> None:
        kept[0](arrays())
        is_used.set()
        is_dropped.wait()
        other(arrays())

    thread = threading.Thread(target=work)
    thread.start()
    is_used.wait()
    freed.clear()
    kept.clear()
    assert freed == []
    is_dropped.set()
    thread.join()
    assert freed == [thread.ident]


def test_the_last_user_counts_and_not_the_first(freed: list[int]) -> None:
    kept = [engine()]
    kept[0](arrays())

    def use_and_drop() -> None:
        kept[0](arrays())
        kept.clear()

    assert freed == [] != (ident := in_a_thread(use_and_drop))
    assert freed == [ident]


def test_what_a_thread_left_is_freed_when_it_is_over(freed: list[int]) -> None:
    kept, is_used, may_end = [engine()], threading.Event(), threading.Event()

    def use() -> None:
        kept[0](arrays())
        is_used.set()
        may_end.wait()

    thread = threading.Thread(target=use)
    thread.start()
    is_used.wait()
    kept.clear()
    retiring.free_retired()
    assert freed == []
    may_end.set()
    ended(thread)
    engine()(arrays())
    assert freed == [threading.get_ident()] * 2


def test_what_was_used_in_a_thread_that_is_over_is_freed_at_once(freed: list[int]) -> None:
    kept = [engine()]
    in_a_thread(lambda: kept[0](arrays()))
    kept.clear()
    assert freed == [threading.get_ident()]


def test_a_tape_keeps_a_plan(freed: list[int]) -> None:
    bridge.load(mx)
    made, given = engine(), arrays()
    with mx.autograd.record():
        (output,) = made(given)
    made.renew()
    retiring.free_retired()
    assert freed == []
    output.backward()
    assert given[1].grad.asnumpy().tolist() == [[1] * 3] * 2
    mx.nd.waitall()
    del output
    made(given)
    assert freed == [threading.get_ident()]


def test_a_tape_keeps_an_executor_of_a_budget() -> None:
    pools = Pools()
    pool = pools.free()
    symbol = mx.sym.var("x") * 2
    x, gradient = mx.nd.ones((2, 3)), mx.nd.zeros((2, 3))
    executor = bind(symbol, mx.cpu(), {"x": x}, {"x": gradient}, {})
    outputs, handle = list(executor.outputs), executor.handle
    executor.handle = mx.base.ExecutorHandle()
    number = pools.add(pool, ("owner",), Bound(handle, [x], [gradient], [True], outputs, [], 0))
    x.attach_grad()
    library = bridge.load(mx)
    assert library.graphopt_binding_users(number) == 1
    with mx.autograd.record():
        output = invoke("graphopt_executor", [x], {"binding": number})
    assert library.graphopt_binding_users(number) > 1
    del pools
    retiring.free_retired()
    assert library.graphopt_binding_users(number) > 1
    mx.nd.waitall()
    del output
    retiring.free_retired()
    assert library.graphopt_binding_users(number) == 0


def test_a_script_ends_in_silence() -> None:
    script = """
import graphopt, mxnet as mx
nn = mx.gluon.nn
net = nn.HybridSequential()
net.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.Activation("relu"))
net.initialize()
x = mx.nd.ones((2, 3, 10, 10))
net(x)
net = graphopt.optimize(net)
for _ in range(2):
    with mx.autograd.record():
        loss = net(x).mean()
    loss.backward()
loss.wait_to_read()
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stderr == ""
