"""Segmentation and detection of single images: optimized, hybridized, and without graphopt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.cnn_nets import fcn_resnet50
from bench.peers.client import Peers
from bench.pixel_nets import take_statistics, unet, yolo3
from bench.report import Record
from bench.test_cnn_inference import plain_alone
from bench.timing import figures, race, ratios
from graphopt.demo import data, models
from graphopt.demo.checking import infer, relative_error

#: How to make a net for images of an extent, and the extent.
NETS: dict[str, tuple[Callable[[int], Any], int]] = {
    "unet": (lambda _extent: unet(), 256),
    "fcn_resnet50": (lambda _extent: fcn_resnet50(), 320),
    "yolo3_darknet53": (lambda extent: yolo3(extent=extent), 416),
}
#: Those that put out (class, score, corners).
WITH_BOXES = {"yolo3_darknet53"}
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
    if not quick:  # the last of small images are four pixels, too few
        take_statistics(example.net, *example.calls[0])
    net = graphopt.optimize(example.net, mode="inference", strict=True)
    plain = example.as_plain()
    expected, found = infer(example, plain), infer(example, net)
    has_boxes = name in WITH_BOXES
    if has_boxes:
        error = relative_error(_scores(expected), _scores(found))
    else:
        error = relative_error(expected, found)
    assert error < 1e-3
    if quick:
        graph = graphopt.lift(example.net, {"data": (1, 3, extent, extent)})
        counters(f"pixel_nets/{name}", workloads.optimized_graph(graph), frozen=True)
    contenders: dict[str, Any] = {
        "graphopt": lambda: example.run(net),
        "plain": lambda: example.run(plain),
    }
    others, notes = plain_alone(example, peers, None if has_boxes else expected)
    notes += (next(line.strip() for line in str(net.explain()).splitlines() if "runs on" in line),)
    medians = race(benchmark, contenders | others, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        table = "segmentation and detection, batch 1, float32"
        record(Record(table, name, shown, ratios(medians), {}, notes))


def _scores(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What does not depend on the last bit: boxes of nearly equal scores change places."""
    return {name: array[..., 1] for name, array in outputs.items()}
