"""Kernels in processes that fork, that end, that lack addresses, or with numba's settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.gate_support import ADD_TANH, python
from tests.places import REPOSITORY
from tests.tiers import one_of

FORK = """
import multiprocessing, os, sys
os.environ["OMP_NUM_THREADS"] = "2"
import numpy as np
import graphopt
import mxnet as mx
from tests.kernels.gate_support import ADD_TANH, call, data, gate, symbol_of

symbol = symbol_of(ADD_TANH, ["x", "y"])
x = mx.nd.ones((2_000_000,))
want = call(symbol, x, x).asnumpy()  # OpenMP's threads are there now
net = gate()
fast = graphopt.optimize(net)
small = data(5, 4)
expected = fast(small).asnumpy()

def child(queue):
    ones = mx.nd.ones((2_000_000,))
    np.testing.assert_array_equal(call(symbol, ones, ones).asnumpy(), want)
    np.testing.assert_allclose(fast(data(5, 4)).asnumpy(), expected, rtol=1e-6)
    again = graphopt.optimize(net)  # which finds all kernels, or compiles them
    np.testing.assert_allclose(again(data(7, 4))[:5].shape, (5, 3))
    queue.put("fine")

context = multiprocessing.get_context("fork")
queue = context.Queue()
for _ in range(2):
    mx.nd.array(np.ones(2_000_000, np.float32)).wait_to_read()  # the caller has threads, too
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join(60)
    assert process.exitcode == 0
np.testing.assert_array_equal(call(symbol, x, x).asnumpy(), want)
pid = os.fork()
if pid == 0:
    os._exit(0 if (call(symbol, x, x).asnumpy() == want).all() else 1)
assert os.waitpid(pid, 0)[1] == 0
"""


FORK_WHILE_COMPILING = """
import os, signal, time
import numpy as np
import graphopt
import mxnet as mx
from graphopt.kernels import library
from tests.kernels.gate_support import ADD_TANH, call, symbol_of

signal.alarm(100)
really = library._make

def slowly(job):
    print("compiling", flush=True)
    time.sleep(0.5)
    return really(job)

library._make = slowly
for function, wait in ((np.tanh, 0), (np.exp, 0.2)):
    symbol = symbol_of(ADD_TANH.replace("tanh", function.__name__), ["x", "y"])
    x = mx.nd.ones((1000,))
    y = call(symbol, x, x)  # a thread of MXNet will compile
    time.sleep(wait)
    pid = os.fork()
    if pid == 0:
        one = mx.nd.ones((1000,))
        os._exit(0 if abs(call(symbol, one, one).asnumpy() - function(2)).max() < 1e-5 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    np.testing.assert_allclose(y.asnumpy(), function(2), rtol=1e-5)
"""


def test_children_after_use() -> None:
    assert python(FORK).split() == ["fine", "fine"]


def test_a_fork_while_a_kernel_is_compiled() -> None:
    # MXNet waits for its threads before a fork, and one of them for Python, which the fork holds.
    assert python(FORK_WHILE_COMPILING).split() == ["compiling", "compiling"]


AT_THE_END = """
import sys, time
import graphopt
import mxnet as mx
from graphopt.kernels import library
from tests.kernels.gate_support import ADD_TANH, call, symbol_of

really = library._make

def slowly(job):
    time.sleep(0.5)
    return really(job)

library._make = slowly
symbol = symbol_of(ADD_TANH, ["x", "y"])
x = mx.nd.ones((1000,))
y = call(symbol, x, x)
time.sleep(float(sys.argv[1]))  # and then nobody waits for y
"""


@pytest.mark.parametrize("wait", one_of(2, [0.2, 0]))
def test_a_process_that_ends_while_a_kernel_is_compiled(wait: float) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AT_THE_END, str(wait)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


IN_PIECES = """
import ctypes
from graphopt.kernels import library

PAGE, NOTHING, PRIVATE = 4096, 0, 0x4022  # the last with neither a file nor memory behind it
c = ctypes.CDLL(None)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def reserved(size):
    found = c.mmap(None, size, NOTHING, PRIVATE, -1, 0)
    assert found != 2**64 - 1, "this process may not reserve so much"
    return found

spec = "f32[a] (f32[a]) { %1 = OP %0; return %1:f32[a] }"
library.kernel(spec.replace("OP", "tanh"), backward=False)  # with all that it imports
size = 64 << 30
large = reserved(size)
for pages in (1 << 18, 1 << 12, 64, 8, 4, 2, 1):  # nothing is free above it
    while (found := reserved(pages * PAGE)) > large:
        pass
    c.munmap(found, pages * PAGE)
c.munmap(large + size - 2 * PAGE, PAGE)  # but for a page, too far away from the next
library.kernel(spec.replace("OP", "exp"), backward=False)
"""


def test_kernels_are_loaded_where_the_address_space_is_in_pieces() -> None:
    """LLVM ends a process where code cannot reach its constants."""
    python(IN_PIECES)


def test_numbas_settings_break_nothing(tmp_path: Path) -> None:
    from graphopt.kernels.bridge import build

    mxnet = build.installed()
    assert mxnet is not None
    made = build.library(mxnet)
    (tmp_path / "bridge").mkdir()
    (tmp_path / "bridge" / made.name).symlink_to(made)
    code = f"""
import numpy as np
from graphopt.kernels import library
from graphopt.kernels.run import run
from graphopt.kernels.spec_parser import parse
x = np.linspace(-2, 2, 1000, dtype="float32")
(y,) = run(parse({ADD_TANH!r}), [x, x])
np.testing.assert_allclose(y, np.tanh(2 * x), rtol=1e-5, atol=1e-6)
assert library.STATISTICS.compiled == 1
"""
    python(code, GRAPHOPT_CACHE_DIR=str(tmp_path), NUMBA_BOUNDSCHECK="1", NUMBA_OPT="0")
