"""Nets that compute less than it takes to wake a thread: what a call costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphopt
from bench import workloads
from bench.peers.client import Peers
from bench.report import Record
from bench.test_cnn_inference import separate_processes
from bench.timing import figures, race, ratios
from graphopt.backend.caller import in_kernels, runs_by_caller
from graphopt.compat import import_mxnet
from graphopt.demo import data, models
from graphopt.demo.checking import infer, relative_error
from graphopt.demo.models import Example

mx = import_mxnet()
nn = mx.gluon.nn

TARGETS = {"plain": 1.0}


class Residual(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """A layer beside its input, normalized, and a classifier."""

    def __init__(self, width: int, classes: int, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.wide = nn.Dense(width, activation="tanh", in_units=width)
            self.norm = nn.LayerNorm(in_channels=width)
            self.out = nn.Dense(classes, in_units=width)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """``(batch, width)`` to probabilities."""
        return F.softmax(self.out(self.norm(self.wide(x) + x)))


def _policy(batch: int) -> Example:
    net = nn.HybridSequential(prefix="policy_")
    with net.name_scope():
        net.add(nn.Dense(64, activation="tanh", in_units=17))
        net.add(nn.Dense(64, activation="tanh", in_units=64))
        net.add(nn.Dense(6, in_units=64))
    return models.example("policy", net, (data.normal((batch, 17)),))


def _digits(batch: int) -> Example:
    net = nn.HybridSequential(prefix="digits_")
    with net.name_scope():
        net.add(nn.Flatten(), nn.Dense(256, activation="relu", in_units=784))
        net.add(nn.Dense(10, in_units=256))
    return models.example("digits", net, (data.normal((batch, 1, 28, 28)),))


def _residual(batch: int) -> Example:
    net = Residual(64, 10, prefix="residual_")
    return models.example("residual", net, (data.normal((batch, 64)),))


NETS: dict[str, Callable[[], Example]] = {
    "policy 17-64-64-6, 1 row": lambda: _policy(1),
    "policy 17-64-64-6, 16 rows": lambda: _policy(16),
    "digits 784-256-10, 1 image": lambda: _digits(1),
    "residual 64, 16 rows": lambda: _residual(16),
}


@pytest.mark.parametrize("name", NETS)
def test_small_net(
    name: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    example = NETS[name]()
    shape = example.calls[0][0].shape
    graph = workloads.optimized_graph(graphopt.lift(example.net, {"data": shape}))
    small = in_kernels(graph)
    assert runs_by_caller(small)
    counters(f"small/{name}", small, frozen=True)
    net = graphopt.optimize(example.net, mode="inference", strict=True)
    plain = example.as_plain()
    expected = infer(example, plain)
    error = relative_error(expected, infer(example, net))
    assert error < 1e-5
    contenders: dict[str, Any] = {
        "graphopt": lambda: example.run(net),
        "plain": lambda: example.run(plain),
    }
    others, notes = ({}, ()) if quick else separate_processes(example, peers, expected)
    medians = race(benchmark, contenders | others, rounds, quick)
    if medians:
        title = "Small net, a call, float32"
        shown = figures(medians) | {"max error": error}
        record(Record(title, name, shown, ratios(medians), TARGETS, notes))
