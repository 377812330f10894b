"""Training steps of convolutional nets: optimized, hybridized, and hybridized without graphopt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.cnn_nets import fcn_resnet50, resnext50
from bench.gated_nets import efficientnet, mobilenet_v3
from bench.peers.client import Peers
from bench.pixel_nets import unet
from bench.report import Record
from bench.test_cnn_inference import plain_alone
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo import data, models
from graphopt.demo.checking import train_step
from graphopt.demo.models import Example

#: Of the whole gradient of the data: numbers that differ in their last bit change single ones of
#: SE-ResNeXt's by 4 %, where they take a relu over its kink.
LARGEST_ERROR = 1e-2
#: How much farther from float64 than MXNet's a gradient may fall: a few numbers at kinks decide.
LUCK = 2
#: Winograd's algorithm rounds twenty times as much, and 2 % of U-Net's whole gradient differ.
LARGEST_ERROR_BY_WINOGRAD = 5e-2


def _zoo(name: str) -> Callable[[int, int], Example]:
    return lambda batch, extent: models.zoo(name, batch, extent)


def _resnext(name: str, gated: bool) -> Callable[[int, int], Example]:
    def make(batch: int, extent: int) -> Example:
        net = resnext50(gated, prefix=f"{name}_")
        return models.example(name, net, (data.normal((batch, 3, extent, extent)),))

    return make


def _gated(name: str, make: Callable[[], Any]) -> Callable[[int, int], Example]:
    return lambda batch, extent: models.example(
        name, make(), (data.normal((batch, 3, extent, extent)),)
    )


def _unet(batch: int, extent: int) -> Example:
    # Without a softmax: the gradient of a sum of probabilities is nothing but rounding.
    return models.example(
        "unet", unet(probabilities=False), (data.normal((batch, 3, extent, extent)),)
    )


def _fcn(batch: int, extent: int) -> Example:
    net = fcn_resnet50()
    return models.example("fcn_resnet50", net, (data.normal((batch, 3, extent, extent)),))


NETS: dict[str, Callable[[int, int], Example]] = {
    "mobilenet_v2_1_0": _zoo("mobilenet_v2_1_0"),
    "mobilenet_v3": _gated("mobilenet_v3", mobilenet_v3),
    "efficientnet_b0": _gated("efficientnet_b0", efficientnet),
    "resnext50": _resnext("resnext50", gated=False),
    "se_resnext50": _resnext("se_resnext50", gated=True),
    "resnet50_v1": _zoo("resnet50_v1"),
    "resnet18_v1": _zoo("resnet18_v1"),
    "unet": _unet,
    "fcn_resnet50": _fcn,
}


@pytest.mark.parametrize("name", NETS)
def test_cnn_training(
    name: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    example = NETS[name](2 if quick else 8, 64 if quick else 224)
    passes = workloads.unmeasured("training") if quick else "training"
    net = graphopt.optimize(example.net, passes=passes)
    plain = example.as_plain()
    expected = _step(example, plain)
    found = _step(example, net)
    error = max(_error(expected[key], found[key]) for key in expected)
    # A quick run has convolutions as they are: what is faster there depends on the machine.
    if error >= (LARGEST_ERROR if quick else LARGEST_ERROR_BY_WINOGRAD):
        exact = workloads.in_float64(example, lambda wide: _step(wide, wide.net))
        assert workloads.distance(exact, found) <= LUCK * workloads.distance(exact, expected)
    graph = graphopt.lift(example.net, {"data": (8, 3, 224, 224)})
    counters(f"cnn_training/{name}", workloads.optimized_graph(graph, "training"), frozen=False)
    contenders: dict[str, Any] = {
        "graphopt": lambda: train_step(example, net),
        "plain": lambda: train_step(example, plain),
    }
    # Single numbers differ as LARGEST_ERROR says: the peer has MXNet's own BatchNorm.
    others, notes = plain_alone(example, peers, expected, tolerance=0.1, backward=True)
    medians = race(benchmark, contenders | others, max(3, rounds // 2), quick)
    if medians:
        shown = figures(medians) | {"gradient error": error}
        table = "CNN training step, batch 8, float32"
        record(Record(table, name, shown, ratios(medians), {}, notes))


def _step(example: Example, net: Any) -> dict[str, np.ndarray]:
    """The output, and the gradient of the data for ones at the outputs."""
    (x,) = example.calls[0]
    x = x.copy()
    x.attach_grad()
    with import_mxnet().autograd.record():
        y = net(x)
    y.backward()
    return {"output": y.asnumpy(), "gradient": x.grad.asnumpy()}


def _error(want: np.ndarray, got: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
