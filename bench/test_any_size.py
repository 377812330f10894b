"""Calls with ever other lengths: a graph for any size, and what MXNet makes of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench.length_nets import NETS
from bench.report import Record
from bench.timing import figures, ratios, waiting
from graphopt.compat import import_mxnet
from graphopt.demo.checking import relative_error

mx = import_mxnet()

LARGEST_ERROR = 1e-4
#: Calls of each in a round; all have other lengths.
CALLS = 40


def _forward(net: Any, args: tuple[Any, ...]) -> Any:
    return net(*args)


def _step(net: Any, args: tuple[Any, ...]) -> Any:
    with mx.autograd.record():
        loss = (net(*args) ** 2).mean()
    loss.backward()
    return loss


def _error(expected: Any, found: Any) -> float:
    return relative_error({"": expected.asnumpy()}, {"": found.asnumpy()})


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (name, what)
        for name in NETS
        for what in ("inference", "step")
        if NETS[name].learns or what == "inference"
    ],
)
def test_any_size(
    name: str,
    what: str,
    benchmark: Any,
    tally: Callable[[str, dict[str, int]], None],
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    net = NETS[name]
    example, run = net.make(quick), _forward if what == "inference" else _step
    ours = graphopt.optimize(example.net)
    plain, static = example.as_plain(), net.make(quick).as_plain()
    plain.hybridize()
    static.hybridize(static_alloc=True)
    least, most = net.lengths
    middle = (least + most) // 2
    second_s = 0.0
    for length in (middle, middle + 1):  # those that are compiled
        args = net.arguments(quick, length)
        start = time.perf_counter()
        waiting(lambda args=args: run(ours, args))()
        second_s = time.perf_counter() - start
        error = _error(run(plain, args), run(ours, args))
        assert error < LARGEST_ERROR
    entries = ours._graphopt_entries()
    if quick:
        alike = len({entry.structure for entry in entries})
        tally(f"any_size/{name}/{what}", {"compiled": len(entries), "structures": alike})
    contenders = {"graphopt": ours, "plain": plain, "plain, static": static}
    draw = np.random.default_rng(0)
    times: dict[str, list[float]] = {each: [] for each in contenders}

    def turn(length: int) -> None:
        args = net.arguments(quick, length)
        for each, one in contenders.items():
            call = waiting(lambda one=one: run(one, args))
            start = time.perf_counter()
            call()
            times[each].append((time.perf_counter() - start) * 1e3)

    def turns() -> None:
        for length in draw.permutation(np.arange(least, most + 1))[:CALLS]:
            turn(int(length))

    for length in (middle - 1, middle + 2):  # the first one tries
        args = net.arguments(quick, length)
        error = _error(run(plain, args), run(ours, args))
        assert error < LARGEST_ERROR
    shown = {"second size s": second_s}
    if not quick:
        turns()
        for each in ("graphopt", "plain"):
            shown[f"{len(times[each])} calls first, {each} s"] = sum(times[each]) / 1e3
        for found in times.values():
            found.clear()
    benchmark.pedantic(turns, rounds=1 if quick else rounds)
    if quick:
        return
    means = {each: float(np.mean(found)) for each, found in times.items()}
    graphs = ours.graphopt_state.compiled.other_sizes.graphs
    ran = sum(graph.calls for graph in graphs)
    shown |= figures(means) | {"compiled": len(ours._graphopt_entries()), "at any size": ran}
    notes = tuple(f"{name}: {graph.told}" for graph in graphs)
    title = f"Ever other lengths, {what}, a call"
    record(Record(title, name, shown, ratios(means), {"plain": 1.0}, notes))
