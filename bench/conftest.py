"""Pinned threads, exact counters, and a table of ratios at the end of a run.

``--benchmark-disable`` makes every bench a quick check: small sizes, no timing, counters as ever.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import graphopt
from bench import counters as counting
from bench import report as reporting
from bench.peers.client import Peers

THREADS = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
# Nothing above imports MXNet or numba, which read these once; peers inherit them.
for _library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
    os.environ[f"{_library}_NUM_THREADS"] = str(THREADS)


# Engines are chosen anew: what an earlier run measured may come from a busy machine.
os.environ["GRAPHOPT_REMEMBER"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("graphopt")
    group.addoption(
        "--update-baselines",
        action="store_true",
        help="write the counters found into bench/baselines/counters.json; not in CI",
    )
    group.addoption(
        "--rounds", type=int, default=15, help="rounds of every interleaved timing (default 15)"
    )
    group.addoption(
        "--slow", action="store_true", help="take the slow benches with --benchmark-disable too"
    )
    group.addoption(
        "--without-peers", action="store_true", help="do not look for ONNX Runtime and PyTorch"
    )


def pytest_configure(config: pytest.Config) -> None:
    # A bench whose counters are wrong fails before it times anything; once is enough.
    config.addinivalue_line("filterwarnings", "ignore:Benchmark fixture was not used")
    if config.getoption("--update-baselines"):
        if os.environ.get("CI"):
            raise pytest.UsageError("--update-baselines is for people: CI is set")
        if hasattr(config, "workerinput") or getattr(config.option, "numprocesses", None):
            raise pytest.UsageError("--update-baselines works in one process: leave out -n")


def is_quick(config: pytest.Config) -> bool:
    """Whether nothing is timed."""
    return bool(config.getoption("--benchmark-disable"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not is_quick(config) or config.getoption("--slow") or config.getoption("-m"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session")
def quick(request: pytest.FixtureRequest) -> bool:
    return is_quick(request.config)


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--rounds"))


@pytest.fixture(scope="session")
def peers(request: pytest.FixtureRequest, quick: bool) -> Iterator[Peers]:
    """Other runtimes; in a quick run none are started."""
    found = Peers(enabled=not quick and not request.config.getoption("--without-peers"))
    yield found
    found.close()


@pytest.fixture
def tally(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[str, dict[str, int]], None]:
    """``tally(name, numbers)``: they are those of the baselines, exactly."""
    update = bool(request.config.getoption("--update-baselines"))

    def check(name: str, found: dict[str, int]) -> None:
        benchmark.extra_info.update(found)
        if update:
            counting.update(name, found)
        else:
            counting.check(name, found)

    return check


@pytest.fixture
def counters(tally: Callable[[str, dict[str, int]], None]) -> Callable[..., None]:
    """``counters(name, graph, ...)``: the sizes are those of the baselines, exactly."""

    def check(name: str, *graphs: Any, frozen: bool) -> None:
        tally(name, counting.count(graphs, frozen=frozen))

    return check


@pytest.fixture
def record(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[reporting.Record], None]:
    """Puts a line into the tables printed at the end."""

    def put(line: reporting.Record) -> None:
        benchmark.extra_info.update(line.numbers())
        request.node.user_properties.append((reporting.PROPERTY, line.as_text()))

    return put


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reports = [r for found in terminalreporter.stats.values() for r in found]
    lines = [
        reporting.Record.from_text(value)
        for report in reports
        if getattr(report, "when", "") == "call"
        for key, value in report.user_properties
        if key == reporting.PROPERTY
    ]
    if is_quick(config) or not lines:
        return
    terminalreporter.section("graphopt bench")
    terminalreporter.write_line(f"{THREADS} threads, {platform.processor() or platform.machine()}")
    for text in reporting.tables(lines):
        terminalreporter.write_line("")
        terminalreporter.write_line(text)


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    import importlib.metadata as metadata

    machine_info["threads"] = THREADS
    machine_info["graphopt"] = graphopt.__version__
    for package in ("mxnet", "numpy", "numba"):
        machine_info[package] = metadata.version(package)
