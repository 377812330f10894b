"""Other people's graphs and the whole vision zoo: lifted, printed, read, optimized, compared."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.report import Record
from graphopt.analysis.metrics import measure
from graphopt.backend.calibrate import calibrated_feeds
from graphopt.backend.choice import CACHED_OP
from graphopt.backend.lower import lower
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import lift_symbol
from graphopt.frontend.symbol_json import read_symbol
from graphopt.ir.node import DATA
from graphopt.pipeline.instruments import compare

SYMBOLS = workloads.DATA / "symbols"

#: Of each family of the zoo, what a quick run takes.
QUICK_ZOO = {"alexnet", "densenet121", "mobilenet_v2_0_25", "mobilenet0_25", "resnet18_v1"}
QUICK_ZOO |= {"resnet18_v2", "squeezenet1_1"}

#: Graphs above this many bytes of JSON are for whole runs, and some that have much to compute.
QUICK_BYTES = 50_000
HEAVY = {"fcn16s", "fcn8s", "vgg16_ucf101", "cifar10_vgg16_acc_0.8772035", "symbol_vgg-cpp"}

RTOL, ATOL = 1e-3, 1e-4

#: Where one call takes half a minute, engines are not tried in turn.
ENGINES = {"mask_rcnn_resnet101_v1d_coco": CACHED_OP}


def _files() -> list[Any]:
    found = []
    for path in sorted((SYMBOLS / "graphs").glob("*.json")):
        title = path.name.removesuffix("-symbol.json")
        is_slow = title in HEAVY or path.stat().st_size > QUICK_BYTES
        marks = [pytest.mark.slow] if is_slow else []
        found.append(pytest.param(path.name, marks=marks, id=title))
    return found


def _zoo() -> list[Any]:
    return [
        pytest.param(name, marks=[] if name in QUICK_ZOO else [pytest.mark.slow])
        for name in workloads.zoo_names()
    ]


@pytest.mark.parametrize("name", _files())
def test_real_symbol(
    name: str, benchmark: Any, counters: Callable[..., None], record: Callable[[Record], None]
) -> None:
    known = json.loads((SYMBOLS / "shapes.json").read_text(encoding="utf-8"))
    if name not in known:
        pytest.skip("no input shapes are known for it")
    symbol = read_symbol(SYMBOLS / "graphs" / name)
    shapes = {key: tuple(shape) for key, shape in known[name]["shapes"].items()}
    title = name.removesuffix("-symbol.json")
    _check("Graphs of public repositories", title, symbol, shapes, benchmark, counters, record)


@pytest.mark.parametrize("name", _zoo())
def test_zoo_model(
    name: str, benchmark: Any, counters: Callable[..., None], record: Callable[[Record], None]
) -> None:
    mx = import_mxnet()
    net = getattr(mx.gluon.model_zoo.vision, name)(prefix=f"{name}_")
    extent = 299 if name == "inception_v3" else 224
    symbol, shapes = net(mx.sym.var("data")), {"data": (1, 3, extent, extent)}
    _check("Gluon's vision zoo", name, symbol, shapes, benchmark, counters, record)


def _check(
    table: str,
    title: str,
    symbol: Any,
    shapes: Mapping[str, tuple[int, ...]],
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
) -> None:
    start = time.perf_counter()
    lifted = lift_symbol(symbol, shapes, name=title)
    lift_s = time.perf_counter() - start
    graph = graphopt.parse(str(lifted))
    assert graph == lifted
    result = benchmark.pedantic(lambda: graphopt.run(graph, strict=True), rounds=1)
    counters(f"real_graphs/{title}", result.graph, frozen=True)
    feeds = calibrated_feeds(graph)
    data = {node.name: feeds[node.name] for node in graph.role(DATA) if node.name in feeds}
    params = {name: array for name, array in feeds.items() if name not in data}
    optimized = lower(result.graph, params, engine=ENGINES.get(title, "auto"))
    found = optimized(**{name: data[name] for name in optimized.data})
    error, noise = _compare(symbol, feeds, list(data), [array.asnumpy() for array in found])
    before, after = measure(graph, frozen=True), measure(result.graph, frozen=True)
    seconds = {"lift s": lift_s, "passes s": sum(r.time_ms for r in result.receipts) / 1e3}
    sizes = {"nodes": before.nodes, "calls before": before.calls, "calls": after.calls}
    record(Record(table, title, sizes | seconds | {"max error": error, "rounding": noise}))


def _compare(
    symbol: Any, feeds: Mapping[str, np.ndarray], data: list[str], found: list[np.ndarray]
) -> tuple[float, float]:
    """Largest error against MXNet's executor, and how far rounding alone moves the outputs.

    Deep nets with random parameters amplify any difference, and a detector that sorts boxes by
    score swaps some. So that much is allowed on top of the tolerance as data changed in its last
    bit moves the output in MXNet itself, times four.
    """
    expected = workloads.run_symbol(symbol, feeds)
    moved = workloads.run_symbol(symbol, {**feeds, **{name: _nudged(feeds[name]) for name in data}})
    errors, noises = [0.0], [0.0]
    for want, got, other in zip(expected, found, moved, strict=True):
        noises.append(float(np.abs(want - other).max(initial=0.0)))
        allowed = ATOL + 4 * noises[-1]
        errors.append(compare({"output": want}, {"output": got}, RTOL, allowed, "graphopt"))
    return max(errors), max(noises)


def _nudged(array: np.ndarray) -> np.ndarray:
    """Floats with the last bit of each up, down or as it was.

    A common factor would move too little: a detector's scores follow it all alike, and none of
    them change places.
    """
    if array.dtype.kind != "f":
        return array
    signs = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], array.shape)
    return np.asarray(array * (1 + 1.2e-7 * signs), array.dtype)
