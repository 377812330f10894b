"""Training steps of the examples: optimized, hybridized, and in PyTorch.

A step is forward, backward and the optimizer's update, on one batch that is there already.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.conftest import THREADS
from bench.peers.client import Peer, PeerError, Peers
from bench.report import Record
from bench.test_cnn_inference import check_peer
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo.checking import Arrays, relative_error

mx = import_mxnet()

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))  # scripts, which are in no package
shared = importlib.import_module("training")
imdb_lstm = importlib.import_module("imdb_lstm")
char_lstm = importlib.import_module("char_lstm")

#: Characters of Nietzsche's text in lower case.
CHARACTERS = 59

SMALL_BATCH = 8


@pytest.mark.parametrize(
    ("batch", "sparse"),
    [(256, False), (256, True), pytest.param(1024, False, marks=pytest.mark.slow)],
)
def test_sentiment(
    batch: int,
    sparse: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    sizes = {"words": 500, "width": 16} if quick else {}
    reviews, labels = imdb_lstm.generate(SMALL_BATCH if quick else batch, seed=0)
    name = f"batch {batch}{', sparse gradients' if sparse else ''}"
    _train(
        "IMDB, embedding 20000x128, LSTM 128 over 80 words, Adam",
        name,
        lambda: imdb_lstm.sentiment(sparse, **sizes),
        (reviews % sizes.get("words", imdb_lstm.WORDS), labels),
        {"sparse": sparse, "unrolled": False},
        benchmark,
        record,
        peers,
        quick,
        rounds,
    )


@pytest.mark.parametrize(
    ("batch", "unrolled"),
    [(128, False), (128, True), (32, False), pytest.param(32, True, marks=pytest.mark.slow)],
)
def test_characters(
    batch: int,
    unrolled: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    sizes = {"hidden": 16, "length": 5} if quick else {}
    rng = np.random.default_rng(0)
    shape = (SMALL_BATCH if quick else batch, sizes.get("length", char_lstm.LENGTH) + 1)
    numbers = rng.integers(CHARACTERS, size=shape).astype("float32")
    _train(
        "characters, one-hot, LSTM 128 over 40 characters, RMSProp",
        f"batch {batch}{', unrolled cell' if unrolled else ''}",
        lambda: char_lstm.characters(CHARACTERS, unrolled=unrolled, **sizes),
        (numbers[:, :-1], numbers[:, -1]),
        {"sparse": False, "unrolled": unrolled},
        benchmark,
        record,
        peers,
        quick,
        rounds,
    )


def _train(
    table: str,
    name: str,
    make: Callable[[], dict[str, Any]],
    arrays: tuple[np.ndarray, np.ndarray],
    options: dict[str, bool],
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    """Check the first step of each contender, then time steps in turns."""
    batch = [mx.nd.array(array) for array in arrays]
    trainings = {label: _training(make(), mode, len(arrays[0])) for label, mode in MODES.items()}
    weights = {key: p.data().asnumpy() for key, p in _parameters(trainings["plain"]).items()}
    results = {label: first_step(training, batch) for label, training in trainings.items()}
    error = relative_error(results["plain"], results["graphopt"])
    assert error < 1e-3
    contenders: dict[str, Any] = {
        label: lambda training=training: training.step(*batch)
        for label, training in trainings.items()
    }
    found: dict[str, Peer] = {}
    notes: tuple[str, ...] = ()
    if not quick:
        plain = trainings["plain"]
        found, notes = pytorch(peers, plain, weights, arrays, results["plain"], options)
    # A step takes up to half a second, and everything that is timed is timed in every round.
    medians = race(benchmark, contenders | found, max(3, rounds // 3), quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        record(Record(f"Training step, {table}", name, shown, ratios(medians), {}, notes))


MODES = {"graphopt": "optimized", "plain": "plain"}


def _training(parts: dict[str, Any], mode: str, batch_size: int) -> Any:
    task = shared.Task(**parts, train=None, test=None, is_right=None)
    return shared.Training(task, mode, batch_size)


def _parameters(training: Any) -> dict[str, Any]:
    """By the part of the name that all nets of a kind have in common."""
    net = training.task.net
    return {name.removeprefix(net.prefix): p for name, p in net.collect_params().items()}


def first_step(training: Any, batch: list[Any]) -> Arrays:
    """The loss and the gradients with the initial weights, in the order of names."""
    _, loss = training.step(*batch)
    found = {
        f"gradient:{name}": p.grad().tostype("default").asnumpy()
        for name, p in sorted(_parameters(training).items())
    }
    return {"loss": loss.asnumpy(), **found}


def pytorch(
    peers: Peers,
    training: Any,
    weights: Arrays,
    arrays: tuple[np.ndarray, np.ndarray],
    expected: Arrays,
    options: dict[str, bool],
) -> tuple[dict[str, Peer], tuple[str, ...]]:
    """The net in PyTorch, its first step checked; or notes that tell why not."""
    if not peers.has("torch_text"):
        return {}, (peers.missing("torch_text"),)
    folder, task = peers.folder, training.task
    # A layer and a cell have other names for the same weights.
    np.savez(folder / "weights.npz", **{n.replace("l0_", ""): w for n, w in weights.items()})
    inputs = []
    for name, array in zip(("data", "labels"), arrays, strict=True):
        np.save(folder / f"{name}.npy", array)
        inputs.append(str(folder / f"{name}.npy"))
    try:
        peer = peers.start(
            "torch_text",
            weights=str(folder / "weights.npz"),
            inputs=inputs,
            threads=THREADS,
            optimizer=task.optimizer,
            **task.settings,
            **options,
        )
        check_peer(peer, peers, expected)
    except PeerError as error:
        return {}, (f"no pytorch: {error}",)
    return {"pytorch": peer}, ()
