"""Plans of whole nets: forward runs beside lower bounds and MXNet's plans; the time plans take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import graphopt
from bench.report import Record
from bench.step_memory import cases
from bench.test_compile_time import network
from graphopt.compat import import_mxnet
from graphopt.memory import plan
from graphopt.memory.listing import allocated

mx = import_mxnet()

BATCH = 4


@pytest.mark.parametrize(
    ("name", "batch"), [*((name, BATCH) for name in cases()), ("lstm", 64), ("lstm", 256)], ids=str
)
def test_forward(
    name: str, batch: int, benchmark: Any, record: Callable[[Record], None], quick: bool
) -> None:
    """What MXNet plans for the net, plain and optimized, and our plan over its lower bound."""
    if quick and name != "encoder":
        pytest.skip("compiles a whole net")
    make, shape_of = cases()[name]
    net, shape = make(), shape_of(batch)
    net.initialize(mx.init.Xavier())
    x = mx.nd.zeros(shape)
    net(x)
    symbol = net(mx.sym.var("data"))
    made = benchmark.pedantic(lambda: plan(symbol, shapes={"data": shape}), rounds=1)
    ratio = made.arena / made.lower_bound
    assert ratio <= 1.02
    fast = graphopt.optimize(net)
    fast(x)
    (entry,) = fast.graphopt_state.compiled.entries
    kernels = entry.lowered.symbol
    (data,) = {arg for arg in kernels.list_arguments() if "data" in arg}
    figures = {
        "plain MiB": planned(symbol, "data", shape),
        "graphopt MiB": planned(kernels, data, shape),
        "our plan MiB": made.arena / (1 << 20),
        "over its bound": ratio,
    }
    assert figures["graphopt MiB"] <= figures["plain MiB"]
    if not quick:
        targets = {"graphopt MiB": figures["plain MiB"], "over its bound": 1.02}
        record(Record("Memory of forward runs", f"{name}, batch {batch}", figures, {}, targets))


def planned(symbol: Any, data: str, shape: tuple[int, ...]) -> int:
    """MiB of what is computed, as MXNet plans it; nothing runs."""
    return allocated(symbol.simple_bind(mx.cpu(), grad_req="null", **{data: shape}).debug_str())


def test_time(benchmark: Any, record: Callable[[Record], None], quick: bool) -> None:
    """How long a plan takes, by the number of nodes."""
    sizes = (400, 800) if quick else (10_000, 20_000)
    seconds = []
    for graph in map(network, sizes):
        start = time.perf_counter()
        made = plan(graph, compare=False)
        seconds.append(time.perf_counter() - start)
        assert made.arena >= made.lower_bound
    benchmark.pedantic(lambda: None, rounds=1)
    if not quick:
        figures = {"10,000 nodes s": seconds[0], "20,000 nodes s": seconds[1]}
        growth = {"growth": seconds[1] / seconds[0]}
        targets = {"10,000 nodes s": 3.0, "growth": 2.5}
        record(Record("Time of a plan", "forward", figures | growth, {}, targets))
