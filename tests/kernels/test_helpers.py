"""Threads that help the one that runs a small graph (kernels/bridge/helpers.h)."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.places import REPOSITORY

#: Dense layers with work for several threads, on the engine of the calling thread.
HEAD = """
import hashlib, os, signal, sys, threading, time
import numpy as np
import graphopt
from graphopt.backend.choice import CALLER
from graphopt.backend.lower import lower
from graphopt.compat import import_mxnet
from graphopt.ir.node import PRODUCT
from graphopt.passes.pack_products import PackProducts
from graphopt.pipeline.base import Settings
from graphopt.pipeline.manager import run_passes

mx = import_mxnet()

def noise(*shape, seed=0):
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape))

def made(rows, seed=0, in_place=False):
    net = mx.gluon.nn.HybridSequential()
    for width in (700, 500, 7):
        net.add(mx.gluon.nn.Dense(width, activation="relu"))
    net.initialize()
    net(noise(rows, 300))
    for at, p in enumerate(net.collect_params().values()):
        p.set_data(noise(*p.shape, seed=at + 100 * seed) * 0.1)
    lifted = graphopt.lift(net, {"data": (rows, 300)})
    settings = Settings("inference", frozen=True)
    graph = run_passes(lifted, [PackProducts()], settings, None).graph  # nothing is measured
    for node in [node for node in graph if node.op == PRODUCT]:
        graph.update(node.but(attrs=node.attrs.set(in_place=in_place)))
    params = {name: p.data() for name, p in net.collect_params().items()}
    return net, lower(graph, params, engine=CALLER, tune=False)

def threads():
    return len(os.listdir("/proc/self/task"))
"""

#: Whether a call makes threads, and whether these then take time of a processor.
IDLE = """
net, run = made(1)
x = noise(1, 300)
mx.nd.waitall()
before = threads()
run(x)
after = threads()
time.sleep(0.1)
spent = time.process_time()
time.sleep(0.5)
print(after - before, time.process_time() - spent < 0.1)
"""

VALUES = """
found = []
for rows, in_place in ((1, True), (1, False), (4, True), (4, False), (9, False)):
    net, run = made(rows, in_place=in_place)
    x = noise(rows, 300)
    (first,) = run(x)
    np.testing.assert_allclose(first.asnumpy(), net(x).asnumpy(), rtol=2e-5, atol=1e-5)
    for call in range(100):
        x = noise(rows, 300, seed=call)
        found.append(run(x)[0].asnumpy().tobytes())
print(hashlib.sha256(b"".join(found)).hexdigest())
"""


#: Nets of several threads at once, of which one has the helpers.
MANY = """
pairs = [made(1, seed) for seed in range(4)]
x = noise(1, 300)
wanted = [run(x)[0].asnumpy() for _, run in pairs]
wrong = []

def work(at):
    for _ in range(200):
        if not np.array_equal(pairs[at][1](x)[0].asnumpy(), wanted[at]):
            wrong.append(at)

workers = [threading.Thread(target=work, args=(at,)) for at in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(wrong)
"""

#: A child has no helpers, and does without; a signal reaches the thread that Python knows.
CHILD = """
net, run = made(1)
x = noise(1, 300)
want = run(x)[0].asnumpy()
caught = []
signal.signal(signal.SIGALRM, lambda *_: caught.append(threading.current_thread().name))
signal.setitimer(signal.ITIMER_REAL, 0.01)
while not caught:
    run(x)
child = os.fork()
if child == 0:
    same = all(np.array_equal(run(x)[0].asnumpy(), want) for _ in range(50))
    os._exit(0 if same else 1)
print(caught, os.waitpid(child, 0)[1], np.array_equal(run(x)[0].asnumpy(), want))
"""


def told(code: str, count: str = "2", policy: str | None = None) -> list[str]:
    """The lines that ``code`` prints in a process of its own, which takes long to begin."""
    env = os.environ | {"OMP_NUM_THREADS": count, "OMP_WAIT_POLICY": policy}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + code],
        cwd=REPOSITORY,
        env={name: value for name, value in env.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_they_change_no_bit_are_as_many_as_are_of_use_and_sleep() -> None:
    alone, values = told(IDLE + VALUES, "1")
    assert alone == "0 True"
    # They sleep whatever OpenMP's threads do.
    assert told(IDLE + VALUES, "2") == ["1 True", values]
    assert told(IDLE + VALUES, "9", "passive") == ["2 True", values]


def test_one_call_has_them_others_and_children_do_without_and_signals_go_elsewhere() -> None:
    assert told(MANY + CHILD) == ["[]", "['MainThread'] 0 True"]
