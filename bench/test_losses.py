"""Gluon's losses and their gradients: optimized, hybridized, and operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo.checking import relative_error

mx = import_mxnet()
loss = mx.gluon.loss

LARGEST_ERROR = 1e-5

#: A loss, and the shapes of what is predicted and of labels; labels with an axis less are classes.
LOSSES: dict[str, tuple[Callable[[], Any], tuple[int, ...], tuple[int, ...]]] = {
    "cross entropy of pixels": (
        lambda: loss.SoftmaxCELoss(axis=1),
        (4, 21, 256, 256),
        (4, 256, 256),
    ),
    "cross entropy of words": (loss.SoftmaxCELoss, (1120, 10000), (1120,)),
    "L2": (loss.L2Loss, (8, 3, 256, 256), (8, 3, 256, 256)),
    "Huber": (loss.HuberLoss, (8, 3, 256, 256), (8, 3, 256, 256)),
    "binary cross entropy": (loss.SigmoidBCELoss, (64, 1000), (64, 1000)),
    "Kullback-Leibler": (lambda: loss.KLDivLoss(from_logits=False), (256, 1000), (256, 1000)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss(
    name: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    make, predicted, labelled = LOSSES[name]
    small = [tuple(min(extent, 9) for extent in shape) for shape in (predicted, labelled)]
    if quick:
        predicted, labelled = small
    graph = graphopt.lift(make(), dict(zip(("data0", "data1"), small, strict=True)))
    counters(f"loss/{name}", workloads.optimized_graph(graph, "training"), frozen=False)
    rng = np.random.default_rng(0)
    x = mx.nd.array(rng.normal(size=predicted))
    if len(labelled) < len(predicted):
        label = mx.nd.array(rng.integers(0, predicted[1], labelled))
    else:
        label = mx.nd.array(rng.uniform(0, 1, labelled))
    x.attach_grad()
    nets = {"graphopt": graphopt.optimize(make(), strict=True), "plain": make(), "eager": make()}
    nets["plain"].hybridize(static_alloc=True, static_shape=True)

    def step(net: Any) -> dict[str, Any]:
        with mx.autograd.record():
            found = net(x, label)
        found.backward()
        return {"loss": found.asnumpy(), "gradient": x.grad.asnumpy()}

    expected = step(nets["plain"])
    error = relative_error(expected, step(nets["graphopt"]))
    assert error < LARGEST_ERROR

    def run(net: Any) -> Callable[[], None]:
        def call() -> None:
            with mx.autograd.record():
                found = net(x, label)
            found.backward()

        return call

    medians = race(benchmark, {key: run(net) for key, net in nets.items()}, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        record(Record("Losses and gradients, float32", name, shown, ratios(medians), {}, ()))
