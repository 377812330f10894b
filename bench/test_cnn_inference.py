"""Single images through six nets of the zoo: optimized, hybridized, ONNX Runtime."""

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
from bench.timing import figures, race, ratios
from graphopt.demo import models
from graphopt.demo.checking import infer, relative_error
from graphopt.demo.models import Example

TARGETS = {"plain": 1.25, "onnxruntime": 0.95}


@pytest.mark.parametrize("name", workloads.CNNS)
def test_cnn_inference(
    name: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    graph = workloads.optimized_graph(workloads.zoo_graph(name))
    counters(f"cnn_inference/{name}", graph, frozen=True)
    extent = workloads.SMALL.get(name, workloads.CNNS[name]) if quick else workloads.CNNS[name]
    example = models.zoo(name, extent=extent)
    net = graphopt.optimize(example.net, mode="inference", strict=True)
    plain = example.as_plain()
    expected = infer(example, plain)
    error = relative_error(expected, infer(example, net))
    assert error < 1e-3
    contenders: dict[str, Any] = {
        "graphopt": lambda: example.run(net),
        "plain": lambda: example.run(plain),
    }
    others, notes = separate_processes(example, peers, expected)
    medians = race(benchmark, contenders | others, rounds, quick)
    if medians:
        record(
            Record(
                "CNN inference, batch 1, float32",
                name,
                figures(medians) | {"max error": error},
                ratios(medians),
                TARGETS,
                notes,
            )
        )


def separate_processes(
    example: Example, peers: Peers, expected: dict[str, np.ndarray]
) -> tuple[dict[str, Peer], tuple[str, ...]]:
    """Plain MXNet in a process of its own, and ONNX Runtime; notes tell why one is missing.

    "plain" in this process gains by what graphopt does to its threads; "plain alone" does not.
    """
    if not peers.has("mxnet"):
        return {}, (peers.missing("mxnet"),)
    found: dict[str, Peer] = {}
    notes: list[str] = []
    symbol, params = workloads.save_checkpoint(example, peers.folder)
    inputs = workloads.save_inputs(example, peers.folder)
    model = peers.folder / f"{example.name}.onnx"

    def plain_alone() -> Peer:
        return peers.start("mxnet", symbol=str(symbol), params=str(params), inputs=inputs)

    def onnx_runtime() -> Peer:
        if not peers.has("export", "onnxruntime"):
            raise PeerError(peers.missing("export", "onnxruntime"))
        peers.export(symbol, params, [example.calls[0][0].shape], model)
        return peers.start("onnxruntime", model=str(model), inputs=inputs, threads=THREADS)

    for name, start in (("plain alone", plain_alone), ("onnxruntime", onnx_runtime)):
        try:
            peer = start()
            check_peer(peer, peers, expected)
            found[name] = peer
        except PeerError as error:
            notes.append(f"no {name} for {example.name}: {error}")
    return found, tuple(notes)


def plain_alone(
    example: Example,
    peers: Peers,
    expected: dict[str, np.ndarray] | None,
    tolerance: float = 1e-3,
    **asked: Any,
) -> tuple[dict[str, Peer], tuple[str, ...]]:
    """Plain MXNet in a process of its own, where operators are MXNet's; or a note why not.

    Args:
        expected: what it has to compute; ``None`` if that depends on the last bit.
        asked: what else the peer is told.
    """
    if not peers.has("mxnet"):
        return {}, (peers.missing("mxnet"),)
    symbol, params = workloads.save_checkpoint(example, peers.folder)
    inputs = workloads.save_inputs(example, peers.folder)
    try:
        peer = peers.start("mxnet", symbol=str(symbol), params=str(params), inputs=inputs, **asked)
        if expected is not None:
            check_peer(peer, peers, expected, tolerance)
    except PeerError as error:
        return {}, (f"no plain alone for {example.name}: {error}",)
    return {"plain alone": peer}, ()


def in_pytorch(
    kind: str,
    request: dict[str, Any],
    peers: Peers,
    expected: dict[str, np.ndarray],
    tolerance: float = 1e-3,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A net in PyTorch, eager and compiled, results checked; and notes that tell why not."""
    found: dict[str, Any] = {}
    notes = []
    for label, compiled in (("pytorch", False), ("pytorch compiled", True)):
        try:
            peer = peers.start(kind, compiled=compiled, **request)
            check_peer(peer, peers, expected, tolerance)
            found[label] = peer
        except PeerError as error:
            notes.append(f"no {label}: {error}")
    return found, tuple(notes)


def check_peer(
    peer: Peer, peers: Peers, expected: dict[str, np.ndarray], tolerance: float = 1e-3
) -> None:
    """A peer that computes something else is no peer."""
    path = peers.folder / "outputs.npz"
    peer.ask("save", to=str(path))
    with np.load(path) as found:
        arrays = dict(zip(expected, (found[key] for key in found.files), strict=True))
    error = relative_error(expected, arrays)
    if not error < tolerance:
        peer.close()
        raise PeerError(f"its outputs are wrong by {error:.1e}")
