"""Tree-LSTMs on SICK: whole forests, batched samples, and what people do otherwise.

Figures are samples a second, since contenders that take one sample at a time get smaller batches.
A training step is forward and backward, without an optimizer, for all alike.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import dynamic, trees
from bench.conftest import THREADS
from bench.peers.client import Peer, PeerError, Peers
from bench.report import Record
from bench.test_cnn_inference import check_peer
from bench.timing import race, ratios
from bench.tree_nets import PerSample, Size, Steps, made, weights_of
from graphopt.compat import import_mxnet
from graphopt.demo.checking import relative_error
from graphopt.kernels import bridge

mx = import_mxnet()

#: Pairs in a batch, and how many of them a net gets that takes one at a time.
BATCH, APART = 256, 32

#: Pairs that nets get in tables of many sizes that take one at a time.
FEW_PAIRS = 4

#: Samples that a net of bench/dynamic.py takes one at a time; batched it takes all.
FEW = 16

#: Different batches, so that none is known from the last time.
BATCHES = 8

BACKWARD = pytest.mark.parametrize("backward", [False, True], ids=["forward", "step"])

#: Contenders of graphopt.
OURS = ("vectorised", "batched")

#: By whether there is a backward: what "vectorised" is to be faster than, and by how much.
TARGETS = {False: {"levels": 2.5}, True: {"levels": 2.5}}

#: Kinds of PyTorch's nets and the jobs that run them.
LEVELS = {"levels": "torch_trees", "levels, each word once": "torch_trees"}
TORCH = LEVELS | {"pytorch-tree-lstm": "torch_tree_package"}


@dataclass(frozen=True)
class Load:
    """What is run: a size, weights and pairs; a batch to check contenders with."""

    size: Size
    weights: dict[str, np.ndarray]
    pairs: list[trees.Pair]
    check: trees.Batch
    backward: bool

    def batches(self, size: int, count: int = BATCHES) -> list[trees.Batch]:
        return trees.batches_of(self.pairs, size, count)

    def request(self, peers: Peers, batches: list[trees.Batch]) -> dict[str, Any]:
        """What a peer is asked for, but for the kind of net."""
        files = {name: peers.folder / f"{name}.npz" for name in ("batches", "check", "weights")}
        trees.save(batches, files["batches"])
        trees.save([self.check], files["check"])
        np.savez(files["weights"], **self.weights)
        return {
            "size": astuple(self.size),
            "threads": THREADS,
            "backward": self.backward,
            **{name: str(path) for name, path in files.items()},
        }


def load_of(backward: bool, quick: bool, units: int = 150) -> Load:
    pairs, words = trees.pairs_of()
    size = Size(words, 6, 5) if quick else Size(words, units=units)
    # Gradients are summed over a batch; in a small one errors show.
    check = trees.batches_of(pairs, 8, 1)[0]
    return Load(size, weights_of(made(PerSample, size)), pairs, check, backward)


@BACKWARD
def test_sick(
    backward: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    load = load_of(backward, quick)
    samples = 4 if quick else BATCH
    expected = found("one by one", load)
    contenders: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    error = 0.0
    for kind in OURS:
        error = max(error, relative_error(expected, found(kind, load)))
        contenders[kind] = runs(kind, load, load.batches(samples))
        sizes[kind] = samples
    assert error < 1e-4
    notes: list[str] = []
    if not quick:
        batches, few = load.batches(BATCH), load.batches(APART)
        for kind, job in TORCH.items():
            started, told = start(peers, job, kind, load, batches, expected)
            contenders |= started
            sizes[kind] = BATCH
            notes += told
        for label, job in (("pytorch", "torch_trees"), ("gluon", "mxnet_trees")):
            kind = "per sample" if label == "pytorch" else "one by one"
            started, told = start(peers, job, kind, load, few, expected)
            contenders |= {f"{label} one by one": peer for peer in started.values()}
            sizes[f"{label} one by one"] = APART
            notes += told
    medians = race(benchmark, contenders, max(3, rounds // 3), quick)
    if medians:
        each = per_sample(medians, sizes)
        table = f"SICK, Tree-LSTM 300-150, {BATCH} pairs, samples/s, {way(backward)}"
        shown = speeds(each) | {"max error": error}
        line = f"{len(batches[0].words)} nodes a batch"
        faster = ratios(each, next(iter(each)))
        record(Record(table, line, shown, faster, TARGETS[backward], tuple(notes)))


@pytest.mark.slow
@BACKWARD
@pytest.mark.parametrize("units", [50, 150, 512])
@pytest.mark.parametrize("samples", [1, 16, 64, 256, 1024])
def test_sizes(
    samples: int,
    units: int,
    backward: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    """From one pair to a thousand: never slower than what takes one at a time."""
    load = load_of(backward, quick, units)
    samples = min(samples, 8) if quick else samples
    batches = load.batches(samples, 3 if samples > 256 else BATCHES)
    few = load.batches(min(samples, FEW_PAIRS))
    contenders: dict[str, Any] = {kind: runs(kind, load, batches) for kind in OURS}
    sizes = dict.fromkeys(OURS, samples)
    notes: list[str] = []
    if not quick:
        asked = (
            ("levels", "levels", batches, "torch_trees"),
            ("pytorch one by one", "per sample", few, "torch_trees"),
            ("gluon one by one", "one by one", few, "mxnet_trees"),
        )
        for label, kind, given, job in asked:
            started, told = start(peers, job, kind, load, given, None)
            for peer in started.values():
                contenders[label] = peer
            sizes[label] = len(given[0])
            notes += told
    medians = race(benchmark, contenders, max(3, rounds // 4), quick)
    if medians:
        each = per_sample(medians, sizes)
        table = f"Trees of different sizes, pairs/s, {way(backward)}"
        line = f"{samples} pairs, {units} units"
        apart = {name: ms for name, ms in each.items() if name.endswith("one by one")}
        faster = ratios(each, "vectorised")
        faster |= {f"batched, {name}": ms / each["batched"] for name, ms in apart.items()}
        record(Record(table, line, speeds(each), faster, {}, tuple(notes)))


def test_memory(
    benchmark: Any, record: Callable[[Record], None], peers: Peers, quick: bool
) -> None:
    """What training steps need in a process of their own, beyond a step on 8 pairs."""
    load = load_of(True, quick)
    batches = load.batches(4 if quick else BATCH)
    benchmark.pedantic(runs("vectorised", load, batches), rounds=1)
    if quick:
        return
    request = load.request(peers, batches)
    ours, notes = {"vectorised": "graphopt_trees"}, []
    shown: dict[str, float] = {}
    for kind, job in (ours | TORCH).items():
        if not peers.has(job):
            notes.append(peers.missing(job))
            continue
        try:
            mb = peers.memory(job, net=kind, count=2 * BATCHES, **request)
        except PeerError as error:
            notes.append(f"no {kind}: {error}")
        else:
            shown[f"{kind} MB"] = mb
    line = f"{BATCH} pairs, {load.size.units} units"
    record(Record("Peak memory of training steps", line, shown, {}, {}, tuple(notes)))


@BACKWARD
def test_schedule(
    backward: bool, benchmark: Any, record: Callable[[Record], None], quick: bool
) -> None:
    """What finding levels and equal nodes takes of the vectorised net."""
    load = load_of(backward, quick)
    run = runs("vectorised", load, load.batches(4 if quick else BATCH))
    calls = 2 if quick else 40
    for _ in range(calls):
        run()

    def several() -> None:
        for _ in range(calls):
            run().wait_to_read()
        mx.nd.waitall()

    mx.nd.waitall()
    before, start = tree_counts(), time.perf_counter()
    benchmark.pedantic(several, rounds=1)
    seconds = time.perf_counter() - start
    nodes, computed, taken = (a - b for a, b in zip(tree_counts(), before, strict=True))
    assert 0 < computed < nodes
    if not quick:
        shown = {
            "ms": 1e3 * seconds / calls,
            "schedule ms": taken / 1e6 / calls,
            "share": taken / 1e9 / seconds,
            "nodes computed": computed / nodes,
        }
        line, limits = f"{BATCH} pairs", {"share": 0.05}
        record(Record(f"Schedule of trees, {way(backward)}", line, shown, {}, limits))


def test_new_batch(benchmark: Any, record: Callable[[Record], None], quick: bool) -> None:
    """The first batch of a recursive net, and others that were not seen; one by one beside."""
    load = load_of(False, quick)
    samples = 4 if quick else BATCH
    fresh, alone = (
        runs("batched", load, load.batches(samples)),
        runs("one by one", load, [load.check]),
    )
    alone().wait_to_read()
    seconds = [timed(fresh)]
    seconds += [timed(fresh) for _ in range(1 if quick else BATCHES - 1)]
    one = min(timed(alone) for _ in range(1 if quick else 5)) / len(load.check)
    benchmark.pedantic(fresh, rounds=1)
    if not quick:
        first, new = samples / seconds[0], samples / float(np.median(seconds[1:]))
        shown = {"first/s": first, "new/s": new, "gluon one by one/s": 1 / one}
        faster = {"gluon one by one": first * one, "gluon one by one, new": new * one}
        table = "Batches that were not seen, samples/s, forward"
        record(Record(table, f"{samples} pairs", shown, faster, {"gluon one by one": 3.0}))


def timed(run: Callable[[], Any]) -> float:
    """Seconds of a call and all that it starts."""
    start = time.perf_counter()
    run()
    mx.nd.waitall()
    return time.perf_counter() - start


def tree_counts() -> tuple[int, ...]:
    """Nodes of all trees by now, how many were computed, and nanoseconds of finding levels."""
    counts = (ctypes.c_int64 * 3)()
    bridge.load(mx).graphopt_tree_counts(counts)
    return tuple(counts)


@pytest.mark.parametrize("samples", [16, BATCH])
def test_structures(
    samples: int, benchmark: Any, record: Callable[[Record], None], quick: bool, rounds: int
) -> None:
    """What new trees cost: nets in which next to nothing else is computed."""
    load = load_of(False, quick)
    tiny = replace(load, size=Size(load.size.words, 1, 1))
    tiny = replace(tiny, weights=weights_of(made(PerSample, tiny.size)))
    batches = load.batches(4 if quick else samples)
    contenders = {
        "vectorised": runs("vectorised", load, batches),
        "one unit": runs("vectorised", tiny, batches),
    }
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        share = medians["one unit"] / medians["vectorised"]
        shown = {f"{name} ms": ms for name, ms in medians.items()} | {"share": share}
        record(
            Record("Schedules, and all that widths do not matter for", f"{samples} pairs", shown)
        )


@pytest.mark.parametrize(
    "backward", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["forward", "step"]
)
@pytest.mark.parametrize("name", dynamic.NETS)
def test_dynamic(
    name: str,
    backward: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    tally: Callable[[str, dict[str, int]], None],
    quick: bool,
    rounds: int,
) -> None:
    """Nets that build a graph for each sample, as they are and batched."""
    tally(f"dynamic/{name}", groups_of(name))
    case = dynamic.NETS[name](dynamic.SMALL if quick else dynamic.Size())
    mx.random.seed(0)
    case.net.initialize(mx.init.Xavier())
    case.net.hybridize()  # for static memory see tree_nets.ready
    few = case.samples[:FEW]
    calls: dict[str, Any] = {
        "batched": graphopt.batch(case.net),
        "one by one": lambda samples: [case.net(*sample) for sample in samples],
    }
    results = {kind: outcome(case.net, lambda call=call: call(few)) for kind, call in calls.items()}
    error = relative_error(results["one by one"], results[next(iter(calls))])
    assert error < 1e-4
    samples = {kind: few if kind == "one by one" else case.samples for kind in calls}
    contenders = {
        kind: lambda call=call, some=samples[kind]: (
            trained(lambda: call(some)) if backward else call(some)
        )
        for kind, call in calls.items()
    }
    medians = race(benchmark, contenders, max(3, rounds // 5), quick)
    if medians:
        each = per_sample(medians, {kind: len(some) for kind, some in samples.items()})
        table = f"Nets that differ by sample, {len(case.samples)}, samples/s, {way(backward)}"
        shown = speeds(each) | {"max error": error}
        record(Record(table, name, shown, ratios(each, next(iter(each)))))


def groups_of(name: str) -> dict[str, int]:
    """How many calls a small batch records, how few they become, and what is planned anew after."""
    case = dynamic.NETS[name](dynamic.SMALL)
    mx.random.seed(0)
    case.net.initialize(mx.init.Xavier())
    batched = graphopt.batch(case.net)
    batched(case.samples)
    found = vars(batched.statistics)
    counts = {key: found[key] for key in ("samples", "calls", "groups", "operators", "flushes")}
    batched(case.samples)
    return counts | {"plans when it comes again": batched.statistics.plans}


def trained(call: Callable[[], Any]) -> list[Any]:
    """The outputs, after a backward from all of their elements' squares."""
    with mx.autograd.record():
        outputs = call()
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        loss = mx.nd.add_n(*((output * output).sum() for output in outputs))
    loss.backward()
    return outputs


def outcome(net: Any, call: Callable[[], Any]) -> dict[str, np.ndarray]:
    """The outputs, laid flat, for they may be in one array or in many; and the gradients."""
    flat = np.concatenate([output.asnumpy().ravel() for output in trained(call)])
    gradients = {n: p.grad().asnumpy().copy() for n, p in net.collect_params().items()}
    return {"outputs": flat, **gradients}


def runs(kind: str, load: Load, batches: list[trees.Batch]) -> Steps:
    return Steps(kind, load.size, load.weights, batches, backward=load.backward)


def found(kind: str, load: Load) -> dict[str, np.ndarray]:
    """What a contender makes of the batch that all are checked with."""
    names = ["scores"] if not load.backward else ["loss", *sorted(load.weights)]
    return dict(zip(names, runs(kind, load, [load.check]).found(), strict=True))


def way(backward: bool) -> str:
    """For titles."""
    return "training step" if backward else "forward"


def per_sample(medians: dict[str, float], sizes: dict[str, int]) -> dict[str, float]:
    """Milliseconds a sample."""
    return {name: ms / sizes[name] for name, ms in medians.items()}


def speeds(each: dict[str, float]) -> dict[str, float]:
    """Samples a second, from milliseconds a sample; titles of tables say what is counted."""
    return {f"{name}/s": round(1e3 / ms) for name, ms in each.items()}


def start(
    peers: Peers,
    job: str,
    kind: str,
    load: Load,
    batches: list[trees.Batch],
    expected: dict[str, np.ndarray] | None,
) -> tuple[dict[str, Peer], list[str]]:
    """A peer, checked if something is expected of it; or a note that tells why not."""
    if not peers.has(job):
        return {}, [peers.missing(job)]
    try:
        peer = peers.start(job, net=kind, **load.request(peers, batches))
        if expected is not None:
            check_peer(peer, peers, expected)
    except PeerError as error:
        return {}, [f"no {kind}: {error}"]
    return {kind: peer}, []
