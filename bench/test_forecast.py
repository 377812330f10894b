"""A training step of nets that forecast series: optimized, and as MXNet runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.forecast_nets import NETS
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo.checking import relative_error
from graphopt.ir.node import RECURRENCE

mx = import_mxnet()

LARGEST_ERROR = 1e-4


@pytest.mark.parametrize("name", NETS)
def test_forecast(
    name: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    make, recurrences, draws = NETS[name]
    mx.random.seed(1)
    net, args = make(quick)
    net.initialize(mx.init.Xavier())
    fast = graphopt.optimize(net)
    # Two steps draw other masks; in inference nothing is drawn.
    run = _likelihood if draws else _step
    error = relative_error(run(net, args), run(fast, args))
    assert error < LARGEST_ERROR
    _step(fast, args)
    (entry,) = (e for e in fast.graphopt_state.compiled.entries if e.mode == "training")
    if quick:
        graph = workloads.optimized_graph(entry.original, entry.mode)
        counters(f"forecast/{name}", graph, frozen=False)
    else:
        assert sum(node.op == RECURRENCE for node in entry.result.graph) == recurrences
    hybridized, _ = make(quick)
    hybridized.initialize(mx.init.Xavier())
    hybridized.hybridize(static_alloc=True, static_shape=True)
    contenders: dict[str, Any] = {
        "graphopt": lambda: _step(fast, args),
        "plain": lambda: _step(hybridized, args),
        "not hybridized": lambda: _step(net, args),
    }
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        record(Record("Forecasting nets, step, float32", name, shown, ratios(medians), {}, ()))


def _likelihood(net: Any, args: tuple[Any, ...]) -> dict[str, np.ndarray]:
    return {"output": net(*args).asnumpy()}


def _step(net: Any, args: tuple[Any, ...]) -> dict[str, np.ndarray]:
    with mx.autograd.record():
        loss = net(*args)
    loss.backward()
    return workloads.gradients(net)
