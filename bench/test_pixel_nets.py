"""Segmentation and detection of single images: optimized, hybridized, and without graphopt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.peers.client import Peer, PeerError, Peers
from bench.pixel_nets import unet, yolo3
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.demo import data, models
from graphopt.demo.checking import infer, relative_error
from graphopt.demo.models import Example

#: How to make a net for images of an extent, and the extent.
NETS: dict[str, tuple[Callable[[int], Any], int]] = {
    "unet": (lambda _extent: unet(), 256),
    "yolo3_darknet53": (lambda extent: yolo3(extent=extent), 416),
}
QUICK_EXTENT = 64


@pytest.mark.parametrize("name", NETS)
def test_pixel_net(
    name: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    make, extent = NETS[name]
    extent = QUICK_EXTENT if quick else extent
    example = models.example(name, make(extent), (data.normal((1, 3, extent, extent)),))
    net = graphopt.optimize(example.net, mode="inference", strict=True)
    plain = example.as_plain()
    expected = infer(example, plain)
    error = relative_error(_sorted(expected), _sorted(infer(example, net)))
    assert error < 1e-3
    if quick:
        graph = graphopt.lift(example.net, {"data": (1, 3, extent, extent)})
        counters(f"pixel_nets/{name}", workloads.optimized_graph(graph), frozen=True)
    contenders: dict[str, Any] = {
        "graphopt": lambda: example.run(net),
        "plain": lambda: example.run(plain),
    }
    others, notes = _alone(example, peers)
    medians = race(benchmark, contenders | others, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        table = "segmentation and detection, batch 1, float32"
        record(Record(table, name, shown, ratios(medians), {}, notes))


def _sorted(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs without what depends on the last bit: of boxes the scores only."""
    return {
        name: array[..., 1] if array.shape[-1] == 6 else array for name, array in outputs.items()
    }


def _alone(example: Example, peers: Peers) -> tuple[dict[str, Peer], tuple[str, ...]]:
    """Plain MXNet in a process of its own: in this one it has graphopt's boxes and joins."""
    if not peers.has("mxnet"):
        return {}, (peers.missing("mxnet"),)
    symbol, params = workloads.save_checkpoint(example, peers.folder)
    inputs = workloads.save_inputs(example, peers.folder)
    try:
        peer = peers.start("mxnet", symbol=str(symbol), params=str(params), inputs=inputs)
    except PeerError as error:
        return {}, (f"no plain alone for {example.name}: {error}",)
    return {"plain alone": peer}, ()
