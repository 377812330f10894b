"""Training steps of the examples: optimized, hybridized, and in PyTorch.

A step is forward, backward and the optimizer's update, on one batch that is there already.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.conftest import THREADS
from bench.peers.client import SERVER, Peer, PeerError, Peers
from bench.report import Record
from bench.test_cnn_inference import check_peer
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo.checking import Arrays, relative_error

mx = import_mxnet()

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))  # scripts, which are in no package
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
        {"net": "sentiment", "sparse": sparse},
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
        {"net": "characters", "unrolled": unrolled},
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
    request: dict[str, Any],
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
    found, notes = {}, ()
    if not quick:
        found, notes = pytorch(peers, weights, arrays, results["plain"], request)
    try:
        # A step takes up to half a second, and everything that is timed is timed in every round.
        medians = race(benchmark, contenders | found, max(3, rounds // 3), quick)
    finally:
        for peer in found.values():
            peer.close()
    if medians:
        shown = figures(medians) | {"max error": error}
        record(Record(f"Training step, {table}", name, shown, ratios(medians), {}, notes))


MODES = {"graphopt": "optimized", "plain": "plain"}


def _training(parts: dict[str, Any], mode: str, batch_size: int) -> Any:
    task = imdb_lstm.Task(**parts, train=None, test=None, is_right=None)
    return imdb_lstm.Training(task, mode, batch_size)


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


# --- PyTorch -----------------------------------------------------------------------------------


class TorchLSTM:
    """The nets of the examples in PyTorch, with the same weights and the same optimizers.

    Its source is sent to the peer's Python, so it imports what it needs itself.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        import numpy
        import torch

        torch.set_num_threads(request["threads"])
        self._torch, self._kind = torch, request["net"]
        data, labels = (torch.from_numpy(numpy.load(path)) for path in request["arrays"])
        self._data = data.long()
        self._labels = labels if self._kind == "sentiment" else labels.long()
        weights = numpy.load(request["weights"])
        self._w = {
            name: torch.nn.Parameter(torch.from_numpy(weights[name])) for name in weights.files
        }
        self._sparse = request.get("sparse", False)
        hidden = self._w["lstm_h2h_weight"].shape[1]
        columns = self._w["lstm_i2h_weight"].shape[1]
        kinds = {"lstm": torch.nn.LSTM, "cell": torch.nn.LSTMCell}
        self._lstm = kinds["cell" if request.get("unrolled") else "lstm"](columns, hidden)
        self._share_weights()
        self._optimizers = self._made_optimizers()
        loss = self._loss()
        loss.sum().backward()
        gradients = (weight.grad.to_dense().numpy() for _, weight in sorted(self._w.items()))
        self._first = [loss.detach().numpy(), *(gradient.copy() for gradient in gradients)]

    def __call__(self) -> list[Any]:
        """One step; the result is that of the very first one, which can be compared."""
        for weight in self._w.values():
            weight.grad = None
        self._loss().mean().backward()
        for optimizer in self._optimizers:
            optimizer.step()
        return self._first

    def _share_weights(self) -> None:
        """PyTorch has the gates in the same order; its LSTM calls the weights otherwise."""
        end = "" if isinstance(self._lstm, self._torch.nn.LSTMCell) else "_l0"
        for kind in ("weight", "bias"):
            for ours, theirs in (("i2h", "ih"), ("h2h", "hh")):
                setattr(self._lstm, f"{kind}_{theirs}{end}", self._w[f"lstm_{ours}_{kind}"])

    def _made_optimizers(self) -> list[Any]:
        optim = self._torch.optim
        dense = dict(self._w)
        if self._kind == "characters":
            return [optim.RMSprop(dense.values(), lr=0.01, alpha=0.9)]
        found = []
        if self._sparse:
            found.append(optim.SparseAdam([dense.pop("embed_weight")], lr=0.001))
        return [optim.Adam(dense.values(), lr=0.001), *found]

    def _loss(self) -> Any:
        nn = self._torch.nn.functional
        numbers = self._data.t()
        if self._kind == "sentiment":
            steps = nn.embedding(numbers, self._w["embed_weight"], sparse=self._sparse)
        else:
            steps = nn.one_hot(numbers, len(self._w["score_bias"])).float()
        last = self._last(steps)
        scores = nn.linear(last, self._w["score_weight"], self._w["score_bias"])
        if self._kind == "characters":
            return nn.cross_entropy(scores, self._labels, reduction="none")
        return nn.binary_cross_entropy_with_logits(scores[:, 0], self._labels, reduction="none")

    def _last(self, steps: Any) -> Any:
        if not isinstance(self._lstm, self._torch.nn.LSTMCell):
            return self._lstm(steps)[0][-1]
        state = None
        for step in steps:
            state = self._lstm(step, state)
        return state[0]


class TorchPeer(Peer):
    """A server that knows the class above too."""

    def __init__(self, python: str) -> None:
        source = (
            f"import sys\nsys.path.insert(0, {str(SERVER.parent)!r})\nimport server\n"
            f"from typing import Any\n{inspect.getsource(TorchLSTM)}\n"
            "server.KINDS['torch_lstm'] = TorchLSTM\nserver.main()\n"
        )
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [python, "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )


def pytorch(
    peers: Peers,
    weights: Arrays,
    arrays: tuple[np.ndarray, np.ndarray],
    expected: Arrays,
    request: dict[str, Any],
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The net in PyTorch, its first step checked; or notes that tell why not."""
    if not peers.has("torch_encoder"):  # a job that needs PyTorch and nothing else
        return {}, (peers.missing("torch_encoder"),)
    paths = {"weights": peers.folder / "weights.npz"}
    np.savez(paths["weights"], **{name.replace("l0_", ""): w for name, w in weights.items()})
    for name, array in zip(("data", "labels"), arrays, strict=True):
        paths[name] = peers.folder / f"{name}.npy"
        np.save(paths[name], array)
    peer = TorchPeer(peers._pythons["torch_encoder"])
    try:
        peer.ask(
            "load",
            kind="torch_lstm",
            weights=str(paths["weights"]),
            arrays=[str(paths["data"]), str(paths["labels"])],
            threads=THREADS,
            **request,
        )
        check_peer(peer, peers, expected)
    except PeerError as error:
        peer.close()
        return {}, (f"no pytorch: {error}",)
    return {"pytorch": peer}, ()
