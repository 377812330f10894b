"""A four-layer transformer encoder: optimized, hybridized, PyTorch eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.conftest import THREADS
from bench.peers.client import Peers
from bench.report import Record
from bench.test_cnn_inference import in_pytorch
from bench.timing import figures, race, ratios
from graphopt.demo import data, models
from graphopt.demo.checking import infer, relative_error, train, train_step
from graphopt.demo.encoder import Encoder
from graphopt.demo.models import Example

TARGETS = {"plain": 1.15, "pytorch compiled": 1.0}

#: Of gradients. Of twelve million values before a ReLU rounding moves a few across zero, and then
#: all of that unit's gradient for a row is there or is not; GELU has no such place.
TRAINING_ERROR = {"gelu": 1e-3, "relu": 5e-2}


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_encoder_inference(
    activation: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    size = workloads.ENCODER
    whole = Encoder(activation=activation, prefix="encoder_")
    graph = graphopt.lift(whole, {"data": (size["batch"], size["length"], size["width"])})
    counters(f"encoder_inference/{activation}", workloads.optimized_graph(graph), frozen=True)
    size = workloads.SMALL_ENCODER if quick else workloads.ENCODER
    example = models.encoder(activation=activation, **size)
    net = graphopt.optimize(example.net, mode="inference", strict=True)
    plain = example.as_plain()
    expected = infer(example, plain)
    error = relative_error(expected, infer(example, net))
    assert error < 1e-3
    contenders: dict[str, Any] = {
        "graphopt": lambda: example.run(net),
        "plain": lambda: example.run(plain),
    }
    found, notes = ({}, ()) if quick else pytorch(example, peers, expected, None, activation, size)
    _race(
        "inference",
        activation,
        size,
        contenders,
        found,
        notes,
        error,
        benchmark,
        record,
        rounds,
        quick,
    )


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_encoder_training(
    activation: str,
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    size = workloads.SMALL_ENCODER if quick else workloads.ENCODER
    example = models.encoder(activation=activation, **size)
    net = graphopt.optimize(example.net, strict=True)
    plain = example.as_plain()
    found = train(example, plain)
    expected = {name: found[name] for name in ("output0", *sorted(found.keys() - {"output0"}))}
    error = relative_error(expected, train(example, net))
    assert error < (1e-3 if quick else TRAINING_ERROR[activation])
    contenders: dict[str, Any] = {
        "graphopt": lambda: train_step(example, net),
        "plain": lambda: train_step(example, plain),
    }
    head = data.normal((size["batch"], size["length"], size["width"]), seed=1).asnumpy()
    found, notes = {}, ()
    if not quick:
        found, notes = pytorch(
            example, peers, expected, head, activation, size, TRAINING_ERROR[activation]
        )
    rounds = max(3, rounds // 2)
    _race(
        "training step",
        activation,
        size,
        contenders,
        found,
        notes,
        error,
        benchmark,
        record,
        rounds,
        quick,
    )


def _race(
    what: str,
    activation: str,
    size: dict[str, int],
    contenders: dict[str, Any],
    found: dict[str, Any],
    notes: tuple[str, ...],
    error: float,
    benchmark: Any,
    record: Callable[[Record], None],
    rounds: int,
    quick: bool,
) -> None:
    medians = race(benchmark, contenders | found, rounds, quick)
    if medians:
        title = f"Encoder {what}, {{layers}} layers, {{batch}}x{{length}}x{{width}}, float32"
        shown = figures(medians) | {"max error": error}
        record(Record(title.format(**size), activation, shown, ratios(medians), TARGETS, notes))


def pytorch(
    example: Example,
    peers: Peers,
    expected: dict[str, np.ndarray],
    head: np.ndarray | None,
    activation: str,
    size: dict[str, int],
    tolerance: float = 1e-3,
    dropout: float = 0.0,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The encoder in PyTorch, its results checked without Dropout; or notes that tell why not."""
    if not peers.has("torch_encoder"):
        return {}, (peers.missing("torch_encoder"),)
    request: dict[str, Any] = {
        "weights": str(workloads.save_weights(example, peers.folder)),
        "inputs": workloads.save_inputs(example, peers.folder),
        "threads": THREADS,
        "heads": size["heads"],
        "layers": size["layers"],
        "activation": activation,
        "dropout": dropout,
    }
    if head is not None:
        request["head"] = str(peers.folder / "head.npy")
        np.save(request["head"], head)
    return in_pytorch("torch_encoder", request, peers, expected, tolerance)
