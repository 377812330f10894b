"""Attention with lengths and Dropout, and decoders that attend from one place at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.attention_nets import DECODERS, LANGUAGE_MODELS, language_model
from bench.peers.client import Peers
from bench.report import Record
from bench.test_encoder import pytorch
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo import data
from graphopt.demo.checking import infer, relative_error, train, train_step
from graphopt.demo.models import Example

mx = import_mxnet()

ROOT = Path(__file__).resolve().parents[1]

LARGEST_ERROR = 1e-3
RATE = 0.1


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_model(
    name: str,
    mode: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    """Values and gradients are compared without Dropout, as masks differ; times are with it."""
    small, large = LANGUAGE_MODELS[name]
    size = small if quick else large
    training = mode == "training"
    graph = _graph(small, RATE)
    counters(f"attention/{name}/{mode}", workloads.optimized_graph(graph, mode), frozen=False)
    find = train if training else infer
    example = language_model(**size, dropout=0.0)
    expected = find(example, example.as_plain())
    error = relative_error(expected, find(example, graphopt.optimize(example.net, strict=True)))
    assert error < LARGEST_ERROR
    found, notes = ({}, ()) if quick else _pytorch(example, peers, expected, training, size)
    dropping = language_model(**size, dropout=RATE)
    net, plain = graphopt.optimize(dropping.net, strict=True), dropping.as_plain()
    run = train_step if training else Example.run
    contenders: dict[str, Any] = {
        "graphopt": lambda: run(dropping, net),
        "plain": lambda: run(dropping, plain),
    }
    medians = race(benchmark, contenders | found, max(3, rounds // 2), quick)
    if medians:
        title = f"Language model, {mode}, 2 layers of 768, lengths, Dropout, float32"
        shown = figures(medians) | {"max error": error}
        record(Record(title, name, shown, ratios(medians), {}, notes))


def test_language_model_memory(
    benchmark: Any, record: Callable[[Record], None], quick: bool
) -> None:
    """What steps take beyond what a process has before, each in one of its own."""
    if quick:
        pytest.skip("runs in several processes")

    def peak(how: str) -> float:
        command = [sys.executable, "-m", "bench.attention_nets", how]
        return float(subprocess.check_output(command, cwd=ROOT, text=True).split()[-1])

    ours = benchmark.pedantic(peak, args=("graphopt",), rounds=1)
    peaks = {"graphopt": ours, "plain": peak("plain")}
    shown = {f"{how} MiB": peak for how, peak in peaks.items()}
    shown["of plain"] = peaks["graphopt"] / peaks["plain"]
    title = "Language model, memory of a step, 2 layers of 768, lengths, Dropout"
    record(Record(title, "8x512 words", shown, {}, {"of plain": 0.5}, ()))


@pytest.mark.parametrize("name", DECODERS)
def test_decoder(
    name: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    small = DECODERS[name](True)
    shapes = dict(zip(("data0", "data1"), (x.shape for x in small.calls[0]), strict=True))
    graph = workloads.optimized_graph(graphopt.lift(small.net, shapes))
    counters(f"decoder/{name}", graph, frozen=True)
    example = DECODERS[name](quick)
    net = graphopt.optimize(example.net, mode="inference", strict=True)
    plain = example.as_plain()
    error = relative_error(infer(example, plain), infer(example, net))
    assert error < LARGEST_ERROR
    contenders: dict[str, Any] = {
        "graphopt": lambda: example.run(net),
        "plain": lambda: example.run(plain),
    }
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        record(Record("Decoder, 24 steps, float32", name, shown, ratios(medians), {}, ()))


def _graph(size: dict[str, int], dropout: float) -> Any:
    net = language_model(**size, dropout=dropout).net
    shape = (size["batch"], size["length"], size["width"])
    return graphopt.lift(net, {"data0": shape, "data1": shape[:1]})


def _pytorch(
    example: Example,
    peers: Peers,
    expected: dict[str, np.ndarray],
    training: bool,
    size: dict[str, int],
) -> tuple[dict[str, Any], tuple[str, ...]]:
    if not training:
        return pytorch(example, peers, expected, None, "gelu", size)
    head = data.normal((size["batch"], size["length"], size["width"]), seed=1).asnumpy()
    names = sorted(set(expected) - {"output0"})
    expected = {name: expected[name] for name in ("output0", *names)}
    return pytorch(example, peers, expected, head, "gelu", size, LARGEST_ERROR, RATE)
