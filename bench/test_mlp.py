"""Dense layers at small batches: optimized, hybridized, ONNX Runtime, PyTorch."""

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
from bench.test_cnn_inference import in_pytorch, separate_processes
from bench.timing import figures, race, ratios
from graphopt.demo import models
from graphopt.demo.checking import infer, relative_error
from graphopt.demo.models import Example
from graphopt.testing import run_pass

TARGETS = {"plain": 1.0, "pytorch compiled": 1.0, "onnxruntime": 1.0}


@pytest.mark.parametrize("batch", [1, 8, 32, 128])
def test_mlp_inference(
    batch: int,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    example = models.mlp(batch)
    # Without a machine to ask, all layers are packed.
    graph = graphopt.lift(example.net, {"data": example.calls[0][0].shape})
    packed = run_pass(graph, "pack-products", frozen=True).graph
    counters(f"mlp_inference/{batch}", packed, frozen=True)
    net = graphopt.optimize(example.net, mode="inference", strict=True)
    plain = example.as_plain()
    expected = infer(example, plain)
    error = relative_error(expected, infer(example, net))
    assert error < 1e-5
    contenders: dict[str, Any] = {
        "graphopt": lambda: example.run(net),
        "plain": lambda: example.run(plain),
    }
    notes: tuple[str, ...] = ()
    if not quick:
        others, notes = separate_processes(example, peers, expected)
        torch, more = pytorch(example, peers, expected)
        contenders, notes = contenders | others | torch, notes + more
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        title = "MLP inference, 784-1024-1024-10, float32"
        shown = figures(medians) | {"max error": error}
        record(Record(title, f"batch {batch}", shown, ratios(medians), TARGETS, notes))


def pytorch(
    example: Example, peers: Peers, expected: dict[str, np.ndarray]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The net in PyTorch, its results checked; or notes that tell why not."""
    if not peers.has("torch_mlp"):
        return {}, (peers.missing("torch_mlp"),)
    request = {
        "weights": str(workloads.save_weights(example, peers.folder)),
        "inputs": workloads.save_inputs(example, peers.folder),
        "threads": THREADS,
    }
    return in_pytorch("torch_mlp", request, peers, expected)
