"""What graphopt itself takes: passes by graph size, the first call, imports, the command line."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import graphopt
from bench.report import Record
from graphopt.compat import import_mxnet
from graphopt.demo import models
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.graph import Graph

OPERATORS_PER_BLOCK = 8
SCALING_LIMIT = 2.3
LIMITS_S = {"import graphopt": 0.15, "graphopt --help": 0.3}


def network(operators: int) -> Graph:
    """Residual blocks with something for every kind of pass in each."""
    sym = import_mxnet().sym
    x = sym.var("data")
    for number in range(max(1, operators // OPERATORS_PER_BLOCK)):
        at = f"block{number}_"
        y = sym.Convolution(x, num_filter=8, kernel=(1, 1), no_bias=True, name=at + "conv")
        y = sym.BatchNorm(y, name=at + "bn")
        y = sym.Activation(y, act_type="relu", name=at + "relu")
        left = sym.exp(y, name=at + "exp")
        right = sym.exp(y, name=at + "exp_again")
        y = sym.elemwise_add(left, right, name=at + "sum")
        y = sym.clip(y, a_min=0.0, a_max=6.0, name=at + "clip")
        x = sym.elemwise_add(x, y, name=at + "residual")
    return lift_symbol(x, {"data": (1, 8, 4, 4)})


def pass_seconds(graph: Graph, mode: Any, repeats: int) -> dict[str, float]:
    """Best time per pass (numbered, as a pipeline may name one twice), and of the whole run."""
    runs: list[dict[str, float]] = []
    for _ in range(repeats):
        start = time.perf_counter()
        receipts = graphopt.run(graph, mode=mode, strict=True).receipts
        whole = time.perf_counter() - start
        found = {f"{i} {r.pass_text}": r.time_ms / 1e3 for i, r in enumerate(receipts)}
        runs.append(found | {"whole run": whole})
    return {name: min(run[name] for run in runs) for name in runs[0]}


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_2000_nodes(
    mode: Any,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    quick: bool,
) -> None:
    graph = network(2000)
    result = benchmark.pedantic(
        lambda: graphopt.run(graph, mode=mode, strict=True), rounds=1 if quick else 3
    )
    counters(f"compile_time/2000 nodes, {mode}", result.graph, frozen=mode == "inference")
    if not quick:
        took = {"seconds": benchmark.stats.stats.min}
        title = f"default pipeline, 2000 nodes, {mode}"
        record(Record("Compile time", title, took, targets={"seconds": 2.0}))


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_scaling(mode: Any, benchmark: Any, record: Callable[[Record], None], quick: bool) -> None:
    sizes = (400, 800) if quick else (10_000, 20_000)
    small, large = (network(size) for size in sizes)
    seconds = [pass_seconds(graph, mode, 1 if quick else 3) for graph in (small, large)]
    benchmark.pedantic(lambda: graphopt.run(small, mode=mode, strict=True), rounds=1)
    if quick:
        return
    for name, of_large in seconds[1].items():
        of_small = seconds[0][name]
        line = {"10,000 nodes s": of_small, "20,000 nodes s": of_large}
        is_telling = of_small > 1e-3
        ratio = {"growth": of_large / of_small} if is_telling else {}
        limit = {"growth": SCALING_LIMIT} if is_telling else {}
        record(Record(f"Growth of compile time, {mode}", name, line | ratio, targets=limit))


def test_first_call(benchmark: Any, record: Callable[[Record], None], quick: bool) -> None:
    """Building and running once: optimized beside hybridized."""
    extent = 64 if quick else 224
    mx = import_mxnet()

    def first_call(optimized: bool) -> float:
        example = models.zoo("resnet50_v1", extent=extent)
        mx.nd.waitall()
        start = time.perf_counter()
        net = graphopt.optimize(example.net, mode="inference") if optimized else example.as_plain()
        example.run(net)
        mx.nd.waitall()
        return time.perf_counter() - start

    found: dict[str, list[float]] = {"graphopt s": [], "plain s": []}
    for _ in range(1 if quick else 3):
        found["graphopt s"].append(first_call(True))
        found["plain s"].append(first_call(False))
    benchmark.pedantic(lambda: first_call(True), rounds=1)
    if not quick:
        medians = {name: statistics.median(times) for name, times in found.items()}
        record(Record("First call", "resnet50_v1, inference", medians))


IMPORT = """
import sys, time
start = time.perf_counter()
import graphopt
print(time.perf_counter() - start)
print(sorted({"mxnet", "numba"} & set(sys.modules)))
"""

HELP = """
import sys
from graphopt.cli.main import main
try:
    main(["--help"])
except SystemExit:
    pass
print(sorted({"mxnet", "numba"} & set(sys.modules)))
"""


def python(*arguments: str) -> list[str]:
    """Lines of stdout."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import graphopt", "graphopt --help"])
def test_neither_mxnet_nor_numba_is_imported(code: str, benchmark: Any) -> None:
    lines = benchmark.pedantic(lambda: python("-c", code), rounds=1)
    assert lines[-1] == "[]"


def test_import_time(benchmark: Any, record: Callable[[Record], None], quick: bool) -> None:
    times = [float(python("-c", IMPORT)[0]) for _ in range(1 if quick else 10)]
    benchmark.pedantic(lambda: python("-c", IMPORT), rounds=1)
    if not quick:
        _record_limit("import graphopt", min(times), record)


def test_help_time(benchmark: Any, record: Callable[[Record], None], quick: bool) -> None:
    benchmark.pedantic(lambda: python("-m", "graphopt", "--help"), rounds=1 if quick else 10)
    if not quick:
        _record_limit("graphopt --help", benchmark.stats.stats.min, record)


def _record_limit(name: str, seconds: float, record: Callable[[Record], None]) -> None:
    limit = {"seconds": LIMITS_S[name]}
    title = f"{name} (limit {limit['seconds']} s)"
    record(Record("Compile time", title, {"seconds": seconds}, targets=limit))
