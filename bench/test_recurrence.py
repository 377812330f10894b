"""Recurrent nets: optimized, hybridized in a process of its own, and PyTorch's LSTM."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest

import graphopt
import graphopt.nn
from bench.conftest import THREADS
from bench.peers.client import Peer, PeerError, Peers
from bench.recurrence import SIZES, SMALL, Size, as_hybrid, lstm_of, net_of, torch_weights
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo.checking import relative_error
from graphopt.passes import PIPELINES

mx = import_mxnet()

TARGETS = {
    ("sentiment", False): {"plain alone": 1.5, "pytorch LSTM": 1.3},
    ("sentiment", True): {"plain alone": 2.0, "pytorch LSTM": 1.6},
    ("unrolled LSTM", False): {"plain alone": 7.0, "pytorch LSTM": 0.8},
    ("unrolled LSTM", True): {"plain alone": 4.0, "pytorch LSTM": 1.3},
    ("unrolled custom cell", False): {"plain alone": 5.0},
    ("unrolled custom cell", True): {"plain alone": 3.0},
    ("language model", False): {},
    ("language model", True): {"plain alone": 1.0, "pytorch LSTM": 1.0},
}


class Case:
    """A net, its input and a gradient of its output."""

    def __init__(self, run: Callable[..., Any], x: np.ndarray, *more: Any) -> None:
        self.net, self.x, self.more = run, mx.nd.array(x), more
        self.x.attach_grad()
        # One call makes parameters that have waited for it.
        rng = np.random.default_rng(1)
        self.head = mx.nd.array(rng.standard_normal(self.forward().shape).astype("f"))

    def forward(self) -> Any:
        with mx.autograd.pause(train_mode=False):
            return self.net(self.x, *self.more)

    def step(self) -> Any:
        with mx.autograd.record():
            y = self.net(self.x, *self.more)
        y.backward(self.head)
        return y

    def found(self) -> dict[str, np.ndarray]:
        """The output and the gradient of the input."""
        y = self.step()
        return {"output": y.asnumpy(), "gradient": self.x.grad.asnumpy()}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("name", SIZES)
def test_recurrence(
    name: str,
    backward: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    size = SMALL if quick else SIZES[name]
    net = net_of(name, size)
    x = inputs(size)
    plain = as_hybrid(name, net)
    plain.hybridize(static_alloc=True, static_shape=True)
    expected = Case(plain, x).found()
    fast = Case(graphopt.optimize(net, strict=True), x)
    error = relative_error(expected, fast.found())
    assert error < 1e-4
    contenders: dict[str, Any] = {"graphopt": fast.step if backward else fast.forward}
    started, notes = {}, []
    if not quick:
        started, notes = others(name, net, fast, peers, backward)
    medians = race(benchmark, contenders | started, rounds, quick)
    if medians:
        table = f"Recurrence, {'training step' if backward else 'forward'}"
        shown = figures(medians) | {"max error": error}
        line = f"{name}, {size}"
        targets = TARGETS[name, backward]
        record(Record(f"{table}: {name}", line, shown, ratios(medians), targets, tuple(notes)))


def ends_of(size: Size) -> np.ndarray:
    """Lengths of 4 to 100 % of the steps, 52 % on average, in no order."""
    ends = np.linspace(max(1, size.steps // 25), size.steps, size.batch)
    return np.random.default_rng(2).permutation(ends.round().astype("i4"))


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "step"])
def test_lengths(
    backward: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    size = SMALL if quick else SIZES["sentiment"]
    x = inputs(size)
    ends = ends_of(size)
    lengths = mx.nd.array(ends, dtype="int32")
    one, both = layer(size), layer(size, bidirectional=True)
    cases = {
        "graphopt": Case(graphopt.optimize(one), x, None, lengths),
        "padded": Case(graphopt.optimize(one), x),
        "both ways": Case(graphopt.optimize(both), x, None, lengths),
    }
    contenders = {n: c.step if backward else c.forward for n, c in cases.items()}
    started, notes = {}, []
    if not quick:
        request = torch_request(one, cases["graphopt"], peers, backward)
        np.save(peers.folder / "lengths.npy", ends.astype("i8"))
        request["lengths"] = str(peers.folder / "lengths.npy")
        started, notes = start(peers, "torch_lstm", "pytorch packed", request)
    medians = race(benchmark, contenders | started, max(3, rounds // 2), quick)
    if medians:
        table = f"Sequences of different lengths, {'training step' if backward else 'forward'}"
        shown = figures(medians) | {
            "share of padded": medians["graphopt"] / medians["padded"],
            "both ways over one": medians["both ways"] / medians["graphopt"],
        }
        limits = {"share of padded": 0.65, "both ways over one": 2.2, "pytorch packed": 10.0}
        line = f"{size}, {ends.mean() / size.steps:.0%} of it"
        record(Record(table, line, shown, ratios(medians), limits, tuple(notes)))


@pytest.mark.parametrize("batch", [32, 64, 96, 128])
def test_lengths_of_few(
    batch: int,
    benchmark: Any,
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    """So few sequences that no thread may wait long for the one that has the longest."""
    size = replace(SMALL if quick else SIZES["sentiment"], batch=batch)
    x = inputs(size)
    ends = ends_of(size)
    net = graphopt.optimize(layer(size))
    contenders = {
        "graphopt": Case(net, x, None, mx.nd.array(ends, dtype="int32")).forward,
        "padded": Case(net, x).forward,
    }
    medians = race(benchmark, contenders, max(3, rounds // 2), quick)
    if medians:
        shown = figures(medians) | {"share of padded": medians["graphopt"] / medians["padded"]}
        line = f"{size}, {ends.mean() / size.steps:.0%} of it"
        record(
            Record("Few sequences of different lengths, forward", line, shown, ratios(medians), {})
        )


def test_rerolling(benchmark: Any, record: Callable[[Record], None], quick: bool) -> None:
    """How long it takes to find 500 steps of two stacked LSTM cells."""
    steps = 20 if quick else 500
    cells = mx.gluon.rnn.HybridSequentialRNNCell(prefix="cells_")
    for n in range(2):
        cells.add(mx.gluon.rnn.LSTMCell(32, input_size=32, prefix=f"cell{n}_"))
    x = mx.sym.var("data")
    outputs, _ = cells.unroll(steps, x, layout="TNC", merge_outputs=True)
    graph = graphopt.lift(outputs, {"data": (steps, 4, 32)})
    before = "infer-types,eliminate-dead-code,eliminate-common-subexpressions"
    graph = graphopt.run(graph, before, mode="training").graph

    def roll() -> Any:
        return graphopt.run(graph, "reroll-recurrence", mode="training", strict=True)

    start = time.perf_counter()
    result = benchmark.pedantic(roll, rounds=1 if quick else 3)
    seconds = time.perf_counter() - start
    assert result.receipts[0].stats == {"recurrences": 2}
    if not quick:
        shown = {"nodes": float(len(graph)), "s": seconds / 3}
        record(Record("Rerolling", f"{steps} steps, 2 layers", shown, {}, {"s": 5.0}))


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("steps", [100, 500])
def test_words(
    steps: int,
    backward: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    """An LSTM over embedded words: rows in use are multiplied once, or every word's row is."""
    words, size = (50, SMALL) if quick else (20_000, Size(steps, 256, 128, 128))
    net = Words(words, size, prefix="words_")
    net.initialize(mx.init.Xavier())
    pipeline = PIPELINES["training" if backward else "inference"]
    pipeline = pipeline.replace("import-rnn", "import-rnn{measure=False}")
    always = pipeline.replace("hoist-lookups", "hoist-lookups{always=True}")
    # As it chooses by itself, but for the sizes of a quick check.
    ours = always if quick else pipeline
    passes = {"graphopt": ours, "each word": pipeline.replace("hoist-lookups,", "")}
    # As in any language, few words make up most of a text.
    numbers = np.floor(words * np.random.default_rng(0).random((size.steps, size.batch)) ** 4)
    cases = {n: Text(graphopt.optimize(net, passes=p), numbers) for n, p in passes.items()}
    plain = Words(words, size, prefix="words_", params=net.collect_params())
    plain.hybridize(static_alloc=True, static_shape=True)
    cases["plain"] = Text(plain, numbers)
    results = {name: case.found() for name, case in cases.items()}
    error = max(relative_error(results["plain"], found) for found in results.values())
    assert error < 1e-4
    assert lookups(cases["graphopt"].net) == [{"lookups": 1}, {"lookups": 1}]
    assert lookups(cases["each word"].net) == []
    calls = {n: case.step if backward else case.forward for n, case in cases.items()}
    medians = race(benchmark, calls, max(3, rounds // 3), quick)
    if medians:
        table = f"Words of a table, {'training step' if backward else 'forward'}"
        shown = figures(medians) | {"max error": error, "rows in use": len(np.unique(numbers))}
        targets = {"each word": 1.3 if backward else 1.1, "plain": 1.1}
        record(Record(table, f"{words} words, {size}", shown, ratios(medians), targets))


def test_last_step(
    benchmark: Any, record: Callable[[Record], None], quick: bool, rounds: int
) -> None:
    """A training step whose loss reads the last output only, as classifiers' do."""
    size = SMALL if quick else Size(200, 256, 32, 100)
    net = Last(size, prefix="last_")
    net.initialize(mx.init.Xavier())
    passes = PIPELINES["training"].replace("import-rnn", "import-rnn{measure=False}")
    cases = {"graphopt": Case(graphopt.optimize(net, passes=passes), inputs(size))}
    net.hybridize(static_alloc=True, static_shape=True)
    cases["plain"] = Case(net, inputs(size))
    results = {name: case.found() for name, case in cases.items()}
    error = relative_error(results["plain"], results["graphopt"])
    assert error < 1e-4
    steps = {name: case.step for name, case in cases.items()}
    medians = race(benchmark, steps, max(3, rounds // 3), quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        table = "Training step, loss of the last output"
        record(Record(table, f"LSTM, {size}", shown, ratios(medians), {"plain": 2.0}))


class Last(mx.gluon.HybridBlock):
    """The last output of an LSTM."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.lstm = mx.gluon.rnn.LSTM(size.units, input_size=size.columns)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.slice_axis(self.lstm(x), axis=0, begin=-1, end=None)


class Words(mx.gluon.HybridBlock):
    """An LSTM over the rows of words ``(steps, batch)``."""

    def __init__(self, words: int, size: Size, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.embed = mx.gluon.nn.Embedding(words, size.columns)
            self.lstm = mx.gluon.rnn.LSTM(size.units, input_size=size.columns)

    def hybrid_forward(self, F: Any, words: Any) -> Any:
        return self.lstm(self.embed(words))


class Text(Case):
    """A net over words; these have no gradient, the parameters do."""

    def __init__(self, run: Callable[..., Any], words: np.ndarray) -> None:
        super().__init__(run, words)
        self.x = mx.nd.array(words)

    def found(self) -> dict[str, np.ndarray]:
        y = self.step()
        learned = self.net.collect_params().items()
        return {"output": y.asnumpy(), **{name: p.grad().asnumpy() for name, p in learned}}


def lookups(net: Any) -> list[dict[str, int]]:
    """What the pass counted, for the graphs with gradients and without."""
    return [
        dict(receipt.stats)
        for entry in net._graphopt_entries()
        for receipt in entry.result.receipts
        if receipt.pass_text.startswith("hoist-lookups")
    ]


def layer(size: Size, **more: Any) -> Any:
    made = graphopt.nn.LSTM(size.units, input_size=size.columns, **more)
    made.initialize(mx.init.Xavier())
    return made


def inputs(size: Size) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((size.steps, size.batch, size.columns)).astype("f")


def others(
    name: str, net: Any, case: Case, peers: Peers, backward: bool
) -> tuple[dict[str, Peer], list[str]]:
    """Plain MXNet, which in this process would have to share threads, and PyTorch."""
    folder = peers.folder
    np.save(folder / "x.npy", case.x.asnumpy())
    np.save(folder / "head.npy", case.head.asnumpy())
    net.save_parameters(str(folder / "plain.params"))
    request: dict[str, Any] = {
        "name": name,
        "size": astuple(SIZES[name]),
        "params": str(folder / "plain.params"),
        "inputs": [str(folder / "x.npy")],
    }
    if backward:
        request["head"] = str(folder / "head.npy")
    found, notes = start(peers, "mxnet_recurrence", "plain alone", request)
    lstm = lstm_of(name, net)
    if lstm is not None:
        asked = torch_request(lstm, case, peers, backward)
        more, told = start(peers, "torch_lstm", "pytorch LSTM", asked)
        found, notes = found | more, notes + told
    return found, notes


def torch_request(lstm: Any, case: Case, peers: Peers, backward: bool) -> dict[str, Any]:
    """PyTorch's LSTM of the same size and weights, on an input of the same size."""
    folder = peers.folder
    weights = torch_weights(lstm)
    np.savez(folder / "lstm.npz", *weights)
    columns = weights[0].shape[1]
    steps, batch = case.x.shape[:2]
    x = np.random.default_rng(0).standard_normal((steps, batch, columns)).astype("f")
    np.save(folder / "lstm-x.npy", x)
    return {
        "weights": str(folder / "lstm.npz"),
        "inputs": [str(folder / "lstm-x.npy")],
        "threads": THREADS,
        "backward": backward,
    }


def start(
    peers: Peers, job: str, label: str, request: dict[str, Any]
) -> tuple[dict[str, Peer], list[str]]:
    if not peers.has(job):
        return {}, [peers.missing(job)]
    try:
        return {label: peers.start(job, **request)}, []
    except PeerError as error:
        return {}, [f"no {label}: {error}"]
