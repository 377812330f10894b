"""Threads that hand graphs on the same arrays to MXNet's engine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import retiring
from graphopt.backend.engines import ExecutorEngine
from graphopt.backend.pushing import TURN, done_in_turn, turn_to_call
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge
from tests.places import REPOSITORY

mx = import_mxnet()

_SCRIPT = """
import sys, threading
import graphopt
from graphopt.backend.engines import CachedOpEngine, ExecutorEngine
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

bridge.load_if_built = lambda _: None  # which importing MXNet calls
mx = import_mxnet()
rounds, ways = int(sys.argv[1]), sys.argv[2:]
net = mx.gluon.nn.HybridSequential()
for _ in range(4):
    net.add(mx.gluon.nn.Dense(6, flatten=False), mx.gluon.nn.LayerNorm())
net.initialize()
net(mx.nd.ones((2, 4)))
symbol = net(mx.sym.var("data"))
known = {p.name: p.data() for p in net.collect_params().values()}


def bind(number):
    arrays = [known.get(name, mx.nd.ones((2, 4))) for name in symbol.list_inputs()]
    for _ in range(rounds):
        ExecutorEngine(symbol, arrays, ["data"], mx.cpu(), "executor")(arrays)


def call(number):
    x = mx.nd.ones((2 + number % 3, 4))
    arrays = [known.get(name, x) for name in symbol.list_inputs()]
    engine = CachedOpEngine(symbol, ["data"])
    for _ in range(2 * rounds):
        engine(arrays)[0].wait_to_read()


works = [bind, bind, call, call, call, call]
for way in ways:
    if way == "bridge":
        bridge.load(mx)
    assert bridge.is_loaded() == (way == "bridge")
    threads = [threading.Thread(target=work, args=(at,)) for at, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("done")
"""


def assert_done(script: str, *arguments: str, **environment: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.stdout.strip() == "done", ran.stderr


def in_turn_and_alone(first: str, second: str) -> list[Any]:
    """Both ways in one process, for a while; and each in its own, for long."""
    long = [pytest.param([way], 4, id=way, marks=pytest.mark.slow) for way in (first, second)]
    return [pytest.param([first, second], 1, id=f"{first} and {second}"), *long]


@pytest.mark.parametrize(("ways", "times"), in_turn_and_alone("without", "bridge"))
def test_executors_are_bound_and_freed_while_threads_call_nets_with_their_arrays(
    ways: list[str], times: int
) -> None:
    assert_done(_SCRIPT, str(50 * times), *ways)


_TRAINED = """
import os, sys, threading, time
import graphopt
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()
nn = mx.gluon.nn
x = mx.nd.random.uniform(shape=(8, 32))


def train(steps):
    for _ in range(steps):
        with mx.autograd.record():
            loss = called(x).sum()
        loss.backward()
        trainer.step(8)
        loss.wait_to_read()


def infer():
    while trains:
        called(x).wait_to_read()


for way in sys.argv[2:]:
    is_optimized = way == "optimized"
    if not is_optimized:
        bridge.load(mx)
    net = nn.HybridSequential()
    for _ in range(3):
        net.add(nn.Dense(32, activation="relu"), nn.LayerNorm())
    net.initialize()
    net(x)
    net.hybridize(static_alloc=True)
    called = graphopt.optimize(net) if is_optimized else net
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    if is_optimized:
        trainer = graphopt.optimize(trainer)
    trains = True
    train(3)
    called(x).wait_to_read()
    threads = [threading.Thread(target=infer, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    train(int(sys.argv[1]))
    trains = False
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
print("done")
"""


@pytest.mark.parametrize(("ways", "times"), in_turn_and_alone("optimized", "plain"))
def test_one_thread_trains_a_net_that_others_call(ways: list[str], times: int) -> None:
    assert_done(_TRAINED, str(75 * times), *ways)


_ENGINES = """
import os, threading
import graphopt
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()
bridge.load(mx)
totals = []


def work():
    total = mx.nd.zeros((3,))
    with mx.engine.bulk(8):
        for _ in range(200):
            total += 1
            total = total * 1
    totals.append(total.asnumpy().tolist())


def everywhere():
    totals.clear()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return totals == [[200.0] * 3] * 4


assert everywhere()
if os.environ["MXNET_ENGINE_TYPE"] != "ThreadedEngine":  # with that one MXNet itself may crash
    pid = os.fork()
    if pid == 0:
        os._exit(0 if everywhere() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert everywhere()
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Dense(4, activation="relu"), mx.gluon.nn.LayerNorm())
net.initialize()
x = mx.nd.ones((2, 3))
fast = graphopt.optimize(net)
assert mx.nd.abs(fast(x) - net(x)).max().asscalar() < 1e-5
print("done")
"""


@pytest.mark.parametrize(
    "engine",
    [
        "NaiveEngine",
        pytest.param("ThreadedEngine", marks=pytest.mark.slow),  # a base of the next
        "ThreadedEnginePerDevice",
    ],
)
def test_every_engine_of_mxnets_runs_what_it_is_handed(engine: str) -> None:
    assert_done(_ENGINES, MXNET_ENGINE_TYPE=engine)


def elsewhere(work: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(60)
    return found[0]


def test_what_is_freed_waits_for_nobody() -> None:
    bridge.load(mx)
    freed: list[str] = []
    with TURN:
        assert not elsewhere(lambda: done_in_turn(lambda: freed.append("in a call")))
        assert done_in_turn(lambda: freed.append("own"))
        elsewhere(
            lambda: retiring.retire(
                threading.get_ident(), lambda: True, lambda: freed.append("later")
            )
        )
        assert freed == ["own"]
    retiring.free_retired()
    assert freed == ["own", "later"]
    with TURN, TURN:
        assert done_in_turn(lambda: freed.append("own again"))
    assert elsewhere(lambda: done_in_turn(lambda: freed.append("of another")))
    assert freed[2:] == ["own again", "of another"]


class Doubling(mx.operator.CustomOp):
    """Calls an optimized net, in a thread of MXNet's."""

    net: Any = None

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], Doubling.net(in_data[0]))


@mx.operator.register("graphopt_test_doubling")
class DoublingProp(mx.operator.CustomOpProp):
    def infer_shape(self, in_shape: Any) -> Any:
        return in_shape, in_shape, []

    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
        return Doubling()


class Loop(mx.gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        _, (found,) = F.contrib.while_loop(
            lambda v: F.sum(v) < 100, lambda v: ([], [v * 2]), [x], max_iterations=20
        )
        return found


def test_a_loop_waits_for_python_that_calls_a_net() -> None:
    dense = mx.gluon.nn.Dense(4, weight_initializer="ones", in_units=4)
    dense.initialize()
    Doubling.net = graphopt.optimize(dense)
    loop = graphopt.optimize(Loop())
    x = mx.nd.ones((1, 4))
    loop(x)
    for _ in range(3):
        found = loop(mx.nd.Custom(x, op_type="graphopt_test_doubling"))
        np.testing.assert_array_equal(found.asnumpy(), [[32.0] * 4])


@pytest.mark.parametrize(
    ("op", "is_own"), [("Custom", True), ("_contrib_boolean_mask", True), ("elemwise_add", False)]
)
def test_graphs_that_are_waited_for_have_a_turn_of_their_own(op: str, is_own: bool) -> None:
    x, y = mx.sym.var("x"), mx.sym.var("y")
    made = {
        "Custom": lambda: mx.sym.Custom(x, op_type="graphopt_test_doubling"),
        "_contrib_boolean_mask": lambda: mx.sym.contrib.boolean_mask(x, y),
        "elemwise_add": lambda: mx.sym.elemwise_add(x, y, name="Custom"),
    }
    assert (turn_to_call(made[op]()) is not TURN) == is_own


def test_a_call_in_the_midst_of_a_call_of_one_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = mx.nd.ones((2, 3)) * 3, mx.nd.ones((2, 3)) * 5
    symbol = mx.sym.var("x") * mx.sym.var("w")
    engine = ExecutorEngine(symbol, [x, w], ["x"], mx.cpu(), "executor")
    run, nested = engine._run, []

    def interrupted(arrays: Any) -> Any:  # as a signal's handler does
        nested.append(engine([x + 1, w])[0].asnumpy().max())
        return run(arrays)

    monkeypatch.setattr(engine, "_run", interrupted)
    for _ in range(2):
        assert engine([x, w])[0].asnumpy().max() == 15
    assert nested == [20, 20]
