"""Inference of nets with gates, functions of each number, groups and deconvolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphopt
from bench import cnn_nets, gated_nets, workloads
from bench.peers.client import Peers
from bench.pixel_nets import take_statistics
from bench.report import Record
from bench.test_cnn_inference import separate_processes
from bench.timing import figures, race, ratios
from graphopt.demo import data, models
from graphopt.demo.checking import infer, relative_error

#: How to make a net, and the extent of its images.
NETS: dict[str, tuple[Callable[[], Any], int]] = {
    "resnext50": (cnn_nets.resnext50, 224),
    "se_resnext50": (lambda: cnn_nets.resnext50(gated=True, prefix="se_resnext_"), 224),
    "mobilenet_v3": (gated_nets.mobilenet_v3, 224),
    "efficientnet_b0": (gated_nets.efficientnet, 224),
    "csp_darknet53": (gated_nets.csp_darknet, 256),
    "arcface_r50": (gated_nets.arcface, 112),
    "pose_resnet18": (gated_nets.pose, 256),
}
QUICK_EXTENT = 64


@pytest.mark.parametrize("name", NETS)
def test_gated_net(
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
    net = make()
    example = models.example(name, net, (data.normal((1, 3, extent, extent)),))
    if not quick:
        take_statistics(net, data.normal((4, 3, extent, extent)))
    fast = graphopt.optimize(net, mode="inference", strict=True)
    plain = example.as_plain()
    expected = infer(example, plain)
    error = relative_error(expected, infer(example, fast))
    assert error < 1e-3
    if quick:
        graph = graphopt.lift(net, {"data": (1, 3, extent, extent)})
        counters(f"gated_nets/{name}", workloads.optimized_graph(graph), frozen=True)
    contenders: dict[str, Any] = {
        "graphopt": lambda: example.run(fast),
        "plain": lambda: example.run(plain),
    }
    others, notes = separate_processes(example, peers, expected)
    notes += (next(line.strip() for line in str(fast.explain()).splitlines() if "runs on" in line),)
    medians = race(benchmark, contenders | others, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        table = "CNN inference with gates, groups and deconvolutions, batch 1, float32"
        record(Record(table, name, shown, ratios(medians), {}, notes))
