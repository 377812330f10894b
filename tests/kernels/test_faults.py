"""Kernels where things go wrong or come at once: forks, threads, odd sizes and values, failures."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.infer import with_types
from graphopt.backend.symbol import to_symbol
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.node import FUSED
from graphopt.ir.parser import parse as parse_graph
from graphopt.kernels import bridge, library
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.run import Request, run
from graphopt.kernels.spec import parse
from graphopt.testing import run_pass
from tests.places import REPOSITORY
from tests.symbols import one_operator

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd

ADD_TANH = "f32[a] (f32[a], f32[a]) { %2 = add %0 %1; %3 = tanh %2; return %3:f32[a] }"


class Gate(mx.gluon.HybridBlock):
    """Two dense layers with a chain of pointwise operators and a reduction between them."""

    def __init__(self, units: int = 6) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.Dense(units, flatten=False)
            self.norm = nn.LayerNorm()
            self.scale = self.params.get("scale", shape=(units,), init="ones")
            self.last = nn.Dense(3, flatten=False)

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
        y = self.first(x)
        y = F.tanh(F.broadcast_mul(y, scale)) * F.sigmoid(y) + y
        return self.last(self.norm(y))


def gate(ctx: Any = None) -> Any:
    mx.random.seed(0)
    net = Gate()
    net.initialize(mx.init.Xavier(), ctx=ctx or mx.cpu())
    net(mx.nd.ones((2, 4), ctx=(ctx or [mx.cpu()])[0]))
    return net


def data(*shape: int, seed: int = 0) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape).astype("float32"))


def same(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=tolerance, atol=tolerance)


def is_fused(net: Any) -> bool:
    return any(node.op == FUSED for node in net.graph())


def symbol_of(spec: str, inputs: list[str]) -> Any:
    return one_operator(FUSED, "f", inputs, {"spec": spec})


def call(symbol: Any, *arrays: Any) -> Any:
    return mx._ctypes.ndarray.CachedOp(symbol)(*arrays)


def python(code: str, *arguments: object, **env: str) -> str:
    """Run in a process of its own; one that hangs fails."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- forks ----------------------------------------------------------------------------------------

FORK = """
import multiprocessing, os, sys
os.environ["OMP_NUM_THREADS"] = "2"
import numpy as np
import graphopt
import mxnet as mx
from tests.kernels.test_faults import ADD_TANH, call, data, gate, symbol_of

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
import os, signal, sys, time
import numpy as np
import graphopt
import mxnet as mx
from graphopt.kernels import library
from tests.kernels.test_faults import ADD_TANH, call, symbol_of

signal.alarm(100)
really = library._make

def slowly(job):
    print("compiling", flush=True)
    time.sleep(0.5)
    return really(job)

library._make = slowly
symbol = symbol_of(ADD_TANH, ["x", "y"])
x = mx.nd.ones((1000,))
y = call(symbol, x, x)  # a thread of MXNet will compile
time.sleep(float(sys.argv[1]))
pid = os.fork()
if pid == 0:
    one = mx.nd.ones((1000,))
    os._exit(0 if abs(call(symbol, one, one).asnumpy() - np.tanh(2)).max() < 1e-5 else 1)
assert os.waitpid(pid, 0)[1] == 0
np.testing.assert_allclose(y.asnumpy(), np.tanh(2), rtol=1e-5)
"""


def test_children_after_use() -> None:
    assert python(FORK).split() == ["fine", "fine"]


@pytest.mark.parametrize("wait", [0, 0.2])
def test_a_fork_while_a_kernel_is_compiled(wait: float) -> None:
    # MXNet waits for its threads before a fork, and one of them for Python, which the fork holds.
    assert python(FORK_WHILE_COMPILING, wait).split() == ["compiling"]


AT_THE_END = """
import sys, time
import graphopt
import mxnet as mx
from graphopt.kernels import library
from tests.kernels.test_faults import ADD_TANH, call, symbol_of

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


@pytest.mark.parametrize("wait", [0, 0.2])
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


# -- interrupts -----------------------------------------------------------------------------------

#: Ctrl-C while the bridge asks Python.
INTERRUPTED = """
import signal, sys
import numpy as np
import graphopt
import mxnet as mx
from graphopt.kernels import bridge
from mxnet.gluon import nn, rnn

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in background ignores it
asked = sys.argv[1]
real, is_first = getattr(bridge, asked), True

def once(*arguments):
    global is_first
    if is_first:
        is_first = False
        signal.raise_signal(signal.SIGINT)
    return real(*arguments)

def learnt(net):
    with mx.autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    return [loss.asnumpy(), *(p.grad().asnumpy() for p in net.collect_params().values())]

x = mx.nd.array(np.random.default_rng(0).normal(size=(4, 7, 16)))
net = nn.HybridSequential()
net.add(rnn.LSTM(24, layout="NTC", input_size=16), nn.LayerNorm(), nn.Dense(4, activation="tanh"))
net.initialize(mx.init.Normal(0.5))
expected = learnt(net)
setattr(bridge, asked, once)
fast = graphopt.optimize(net)
try:
    learnt(fast)
except KeyboardInterrupt:
    print("KeyboardInterrupt")
for _ in range(2):
    for found, wanted in zip(learnt(fast), expected):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.parametrize("asked", ["_recurrence_numbers", "_kernel_numbers", "_spec"])
def test_an_interrupt_while_python_is_asked(asked: str) -> None:
    assert python(INTERRUPTED, asked).strip() == "KeyboardInterrupt"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("module", "asked", "op"), [(bridge, "_kernel_numbers", "sub"), (library, "kernel", "mul")]
)
def test_what_python_does_not_answer_is_not_kept(
    module: Any, asked: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: Any, **__: Any) -> None:
        raise SystemExit

    symbol = symbol_of(ADD_TANH.replace("tanh", "sin").replace("add", op), ["x", "y"])
    x, y = data(5), data(5, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, asked, leave)
        with pytest.raises(mx.MXNetError, match="Python was interrupted"):
            call(symbol, x, y).wait_to_read()
    same(call(symbol, x, y), mx.nd.sin(x - y if op == "sub" else x * y))


# -- threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_threads_that_call_one_net(mode: str) -> None:
    net = gate()
    fast = graphopt.optimize(net, mode=mode)
    inputs = [data(2 + i % 3, 4, seed=i) for i in range(8)]
    want = [net(x) for x in inputs]
    barrier = threading.Barrier(8)

    def work(number: int) -> list[Any]:
        barrier.wait(60)
        return [fast(inputs[number]) for _ in range(300)]  # one in 4,000 went wrong once

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(work, range(8), timeout=100)):
            for got in found:
                same(got, want[number])


def test_threads_that_want_one_kernel_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_kernels", {})
    before = library.STATISTICS.compiled + library.STATISTICS.loaded
    barrier = threading.Barrier(8)

    def work(_: int) -> int:
        barrier.wait(60)
        return library.kernel(ADD_TANH, backward=False).address

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8), timeout=100))) == 1
    assert library.STATISTICS.compiled + library.STATISTICS.loaded == before + 1


# -- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_arrays_without_elements(shape: tuple[int, int]) -> None:
    x, w = np.ones(shape, "float32"), np.ones(shape[1], "float32")
    spec = parse("f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = tanh %2; return %3:f32[a,b] }")
    assert run(spec, [x, w])[0].shape == shape
    found = differentiate(spec)
    reads = [
        *(x for _ in found.heads),
        *([x, w][i] for i in found.inputs),
        *(x for _ in found.outputs),
    ]
    for g, like in zip(run(spec, reads, backward=True), (x, w), strict=True):
        assert g.shape == like.shape
        assert not g.any()
    rows = parse("f32[a|b] (f32[a,b]) { %1 = reduce_sum %0; return %1:f32[a] }")
    assert run(rows, [x])[0].tolist() == [0.0] * shape[0]
    softmax = parse("f32[a|b] (f32[a,b]) { %1 = softmax %0; return %1:f32[a,b] }")
    assert run(softmax, [x])[0].shape == shape
    added = np.full(shape[1], 7, "float32")
    sums = parse("f32[a,b] (f32[a,b]) { %1 = exp %0; return %1:f32[b] }")
    run(sums, [x], outputs=[added], requests=[Request.ADD])
    assert added.tolist() == [7.0] * shape[1]


def needs_memory(gigabytes: float) -> None:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free < gigabytes * 1e9:
        pytest.skip(f"needs {gigabytes} GB of free memory")


@pytest.mark.slow
def test_more_elements_than_32_bits_count() -> None:
    needs_memory(6)
    rows, columns = 2**16 + 3, 2**15
    x = np.zeros((rows, columns), "uint8")  # zeros take no memory until they are read
    x[-1] = 2
    x[2**16 - 1, 5] = 7
    spec = parse("f32[a|b] (u8[a,b]) { %1 = reduce_sum %0; return %1:f32[a] }")
    (sums,) = run(spec, [x])
    want = np.zeros(rows, "float32")
    want[-1], want[2**16 - 1] = 2 * columns, 7
    np.testing.assert_array_equal(sums, want)
    flat = parse("f32[a] (u8[a]) { %1 = mul %0 0.5; return %1:f32[] }")
    (total,) = run(flat, [x.reshape(-1)])
    assert total == columns + 3.5


@pytest.mark.slow
def test_more_elements_than_32_bits_count_are_written() -> None:
    needs_memory(6)
    rows, columns = 2**16 + 3, 2**15
    out = np.full((rows, columns), 9, "uint8")
    spec = parse(
        "f32[a,b] (f32[a,1], f32[b]) { %2 = add %0 %1; %3 = mul %2 2.0; return %3:u8[a,b] }"
    )
    left = np.arange(rows, dtype="float32")[:, None] % 50
    right = np.arange(columns, dtype="float32") % 70
    run(spec, [left, right], outputs=[out])
    for row in (0, 1, 2**15, 2**16 - 1, 2**16, rows - 1):
        np.testing.assert_array_equal(out[row], 2 * (left[row] + right))


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_nan_and_infinity(mode: str) -> None:
    net = gate()
    fast = graphopt.optimize(net, mode=mode)
    x = data(6, 4).asnumpy()
    for row, value in enumerate((np.nan, np.inf, -np.inf, 3e38, 1e-45)):
        x[row, row % 4] = value
    with np.errstate(all="ignore"):
        want, got = net(mx.nd.array(x)).asnumpy(), fast(mx.nd.array(x)).asnumpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(want[:3]).all()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert np.isfinite(got[5]).all()


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("relu", {}),
        ("tanh", {}),
        ("sigmoid", {}),
        ("exp", {}),
        ("Activation", {"act_type": "softrelu"}),
        ("LeakyReLU", {"act_type": "gelu"}),
    ],
)
def test_special_values_are_mxnets(op: str, attrs: dict[str, Any]) -> None:
    class One(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.clip(getattr(F, op)(x * 2.0, **attrs) + 1.0, -1e30, 1e30)

    x = mx.nd.array([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [-0.0, 1e-45, 3e38]])
    net = One()
    fast = graphopt.optimize(net)
    want, got = net(x).asnumpy(), fast(x).asnumpy()
    assert is_fused(fast)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_softmax_of_nan_is_nan_in_its_row_only() -> None:
    class Soft(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.softmax(x * 2.0, axis=-1) + 1.0

    net = Soft()
    fast = graphopt.optimize(net)
    x = mx.nd.array([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [4, 1, 2]])
    want, got = net(x).asnumpy(), fast(x).asnumpy()
    assert is_fused(fast)
    # All of the row: oneDNN makes zeros of the finite ones beside.
    assert np.isnan(got[np.isnan(want)]).all()
    np.testing.assert_allclose(got[2:], want[2:], rtol=1e-5)


# -- refusals and failures ------------------------------------------------------------------------


def test_shapes_that_do_not_fit_name_the_node() -> None:
    spec = "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = tanh %2; return %3:f32[a,b] }"
    symbol = symbol_of(spec, ["x", "w"])
    with pytest.raises(mx.MXNetError, match="input 1 of node f has extent 5 on axis 0"):
        call(symbol, mx.nd.ones((3, 4)), mx.nd.ones((5,)))
    with pytest.raises(mx.MXNetError, match="input 0 of node f has 1 axes; its kernel was made"):
        call(symbol, mx.nd.ones((3,)), mx.nd.ones((3,)))
    with pytest.raises(mx.MXNetError, match="input 1 of node f has type code"):
        call(symbol, mx.nd.ones((3, 4)), mx.nd.ones((4,), dtype="float16"))
    assert call(symbol, mx.nd.ones((3, 4)), mx.nd.ones((4,))).shape == (3, 4)


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8", "bf16"])
def test_dtypes_kernels_do_not_compute_in_are_refused(dtype: str) -> None:
    text = f"""graph g(%x: {dtype}[8,4], %y: {dtype}[8,4]) {{
      %a = elemwise_add(%x, %y) : {dtype}[8,4]
      %b = elemwise_mul(%a, %y) : {dtype}[8,4]
      %c = elemwise_sub(%b, %x) : {dtype}[8,4]
      return %c
    }}"""
    graph = parse_graph(text)
    result = run_pass(graph, "fuse-pointwise", target=MXNetTarget())
    assert result.graph.is_unchanged_from(graph)
    missed = [str(remark) for remark in result.remarks]
    why = "left to compute in bfloat16" if dtype == "bf16" else "is not fused"
    assert any(why in remark for remark in missed), missed


def test_a_kernel_that_does_not_compile_is_mxnets_error(monkeypatch: pytest.MonkeyPatch) -> None:
    symbol = symbol_of(ADD_TANH.replace("add", "sub"), ["x", "y"])
    x = mx.nd.ones((4,))

    def refuse(text: str, *, backward: bool) -> Any:
        raise RuntimeError("no compiler today")

    with monkeypatch.context() as patch:
        patch.setattr(library, "kernel", refuse)
        with pytest.raises(mx.MXNetError, match="graphopt: RuntimeError: no compiler today"):
            call(symbol, x, x).asnumpy()
    # And once it compiles, all is well.
    assert call(symbol, x, x).asnumpy().tolist() == [0.0] * 4


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
from graphopt.kernels.spec import parse
x = np.linspace(-2, 2, 1000, dtype="float32")
(y,) = run(parse({ADD_TANH!r}), [x, x])
np.testing.assert_allclose(y, np.tanh(2 * x), rtol=1e-5, atol=1e-6)
assert library.STATISTICS.compiled == 1
"""
    python(code, GRAPHOPT_CACHE_DIR=str(tmp_path), NUMBA_BOUNDSCHECK="1", NUMBA_OPT="0")


# -- gradients ------------------------------------------------------------------------------------


def parameters(net: Any) -> dict[str, Any]:
    return {name: p for name, p in net.collect_params().items() if p.grad_req != "null"}


def both() -> tuple[Any, Any]:
    """A net, and the optimized view of a net with the same parameters."""
    plain, net = gate(), gate()
    pairs = zip(plain.collect_params().values(), net.collect_params().values(), strict=True)
    for source, target in pairs:
        target.set_data(source.data())
    return plain, graphopt.optimize(net)


def slopes(net: Any) -> list[Any]:
    return [p.grad().asnumpy().copy() for p in parameters(net).values()]


def near(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want) > 0
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def test_gradients_that_add() -> None:
    found = []
    for net in both():
        for p in parameters(net).values():
            p.grad_req = "add"
            p.zero_grad()
        for seed in range(3):
            with autograd.record():
                loss = (net(data(5, 4, seed=seed)) ** 2).sum()
            loss.backward()
        found.append(slopes(net))
    near(found[1], found[0])


def test_gradients_that_add_to_an_input() -> None:
    found = []
    for net in both():
        x = data(5, 4)
        x.attach_grad(grad_req="add")
        for _ in range(2):
            with autograd.record():
                loss = (net(x) ** 2).sum() + (x * x).sum()
            loss.backward()
        found.append([x.grad.asnumpy()])
    near(found[1], found[0])


def test_two_calls_before_one_backward() -> None:
    found = []
    for net in both():
        with autograd.record():
            loss = (net(data(5, 4)) * net(data(5, 4, seed=1))).sum() + net(data(3, 4)).sum()
        loss.backward()
        found.append(slopes(net))
    assert found[0][0].any()
    near(found[1], found[0])


def test_a_graph_that_is_retained() -> None:
    found = []
    for net in both():
        with autograd.record():
            loss = (net(data(5, 4)) ** 2).sum()
        loss.backward(retain_graph=True)
        first = slopes(net)
        loss.backward()
        for once, again in zip(first, slopes(net), strict=True):
            np.testing.assert_array_equal(again, once)
        found.append(first)
    near(found[1], found[0])


def test_gradients_of_some_parameters_only() -> None:
    found = []
    for net in both():
        for name, p in parameters(net).items():
            if "scale" in name or "gamma" in name:
                p.grad_req = "null"
        with autograd.record():
            loss = (net(data(5, 4)) ** 2).sum()
        loss.backward()
        found.append(slopes(net))
    near(found[1], found[0])


def test_several_contexts() -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = gate(contexts)
    fast = graphopt.optimize(net)
    for ctx in contexts:
        x = data(5, 4).as_in_context(ctx)
        got = fast(x)
        assert got.ctx == ctx
        same(got, net(x))
    with autograd.record():
        losses = [(fast(data(5, 4).as_in_context(ctx)) ** 2).sum() for ctx in contexts]
    autograd.backward(losses)
    assert is_fused(fast)
    for p in parameters(net).values():
        first, second = (grad.asnumpy() for grad in p.list_grad())
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


# -- files ----------------------------------------------------------------------------------------


def test_an_exported_net_runs_where_graphopt_was_imported(tmp_path: Path) -> None:
    fast = graphopt.optimize(gate(), mode="inference")
    x = data(5, 4)
    want = fast(x).asnumpy()
    assert is_fused(fast)
    fast.export(str(tmp_path / "net"), kernels=True)
    assert FUSED in (tmp_path / "net-symbol.json").read_text()
    np.save(tmp_path / "x.npy", x.asnumpy())
    code = """
import sys
import numpy as np
import graphopt
import mxnet as mx
path = sys.argv[1]
net = mx.gluon.SymbolBlock.imports(path + "/net-symbol.json", ["data"], path + "/net-0000.params")
for name in ("out", "again"):
    np.save(f"{path}/{name}.npy", net(mx.nd.array(np.load(path + "/x.npy"))).asnumpy())
    net.hybridize()
"""
    python(code, tmp_path)
    for name in ("out", "again"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), want, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_by_default_plain_mxnet_loads_what_is_exported(tmp_path: Path) -> None:
    fast = graphopt.optimize(gate(), mode="inference")
    x = data(5, 4)
    want = fast(x).asnumpy()
    assert is_fused(fast)
    prefix = str(tmp_path / "net")
    fast.export(prefix)
    assert FUSED not in (tmp_path / "net-symbol.json").read_text()
    again = mx.gluon.SymbolBlock.imports(f"{prefix}-symbol.json", ["data"], f"{prefix}-0000.params")
    np.testing.assert_allclose(again(x).asnumpy(), want, rtol=1e-5, atol=1e-6)


def test_a_symbol_that_is_copied_and_saved_stays_what_it_is() -> None:
    graph = with_types(
        parse_graph(
            "graph g(%x: f32[8,4], %w: f32[4])"
            " { %a = broadcast_mul(%x, %w) %b = tanh(%a) %c = exp(%b) return %c }"
        )
    )
    symbol = to_symbol(run_pass(graph, "fuse-pointwise", target=MXNetTarget()).graph)
    again = mx.sym.load_json(symbol.tojson())
    x, w = data(8, 4), data(4)
    want = call(symbol, x, w).asnumpy()
    np.testing.assert_array_equal(call(again, x, w).asnumpy(), want)
    np.testing.assert_allclose(want, np.exp(np.tanh(x.asnumpy() * w.asnumpy())), rtol=1e-5)
