"""A four-layer transformer encoder: optimized, hybridized, PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.conftest import THREADS
from bench.peers.client import Peer, PeerError, Peers
from bench.report import Record
from bench.test_cnn_inference import check_peer
from bench.timing import figures, race, ratios
from graphopt.demo import models
from graphopt.demo.checking import infer, relative_error
from graphopt.demo.encoder import Encoder
from graphopt.demo.models import Example

TARGETS = {"plain": 1.05}


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
    peer, notes = pytorch(example, peers, expected, activation=activation, **size)
    contenders: dict[str, Any] = {
        "graphopt": lambda: example.run(net),
        "plain": lambda: example.run(plain),
    }
    if peer is not None:
        contenders["pytorch"] = peer
    try:
        medians = race(benchmark, contenders, rounds, quick)
    finally:
        if peer is not None:
            peer.close()
    if medians:
        title = "Encoder inference, {layers} layers, {batch}x{length}x{width}, float32"
        shown = figures(medians) | {"max error": error}
        record(Record(title.format(**size), activation, shown, ratios(medians), TARGETS, notes))


def pytorch(
    example: Example, peers: Peers, expected: dict[str, np.ndarray], **size: Any
) -> tuple[Peer | None, tuple[str, ...]]:
    """The encoder in PyTorch, its outputs checked; or a note that tells why not."""
    if not peers.has("torch_encoder"):
        return None, (peers.missing("torch_encoder"),)
    try:
        peer = peers.start(
            "torch_encoder",
            weights=str(workloads.save_weights(example, peers.folder)),
            inputs=workloads.save_inputs(example, peers.folder),
            threads=THREADS,
            **{key: size[key] for key in ("heads", "layers", "activation")},
        )
        check_peer(peer, peers, expected)
    except PeerError as error:
        return None, (f"no PyTorch: {error}",)
    return peer, ()
