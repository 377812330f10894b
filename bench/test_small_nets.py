"""Nets that compute little: what a call, and a step, costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.conftest import THREADS
from bench.peers.client import Peers
from bench.report import Record
from bench.test_cnn_inference import separate_processes
from bench.timing import figures, race, ratios
from graphopt.backend.small import (
    in_kernels,
    learns_at_once,
    learns_by_caller,
    runs_by_caller,
)
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


class Critic(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """The worth of an action in a state."""

    def __init__(self, width: int, states: int, actions: int, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.state = nn.Dense(width, activation="relu", in_units=states)
            self.both = nn.Dense(width, activation="relu", in_units=width + actions)
            self.worth = nn.Dense(1, in_units=width)

    def hybrid_forward(self, F: Any, state: Any, action: Any) -> Any:
        """``(batch, states)`` and ``(batch, actions)`` to ``(batch, 1)``."""
        return self.worth(self.both(F.concat(self.state(state), action, dim=1)))


def _critic(batch: int) -> Example:
    net = Critic(64, 17, 6, prefix="critic_")
    return models.example("critic", net, (data.normal((batch, 17)), data.normal((batch, 6))))


def _layers(batch: int, *widths: int) -> Example:
    net = nn.HybridSequential(prefix="layers_")
    with net.name_scope():
        for before, after in itertools.pairwise(widths[:-1]):
            net.add(nn.Dense(after, activation="tanh", in_units=before))
        net.add(nn.Dense(widths[-1], in_units=widths[-2]))
    return models.example("layers", net, (data.normal((batch, widths[0])),))


def _policy(batch: int) -> Example:
    return _layers(batch, *POLICY)


def _digits(batch: int) -> Example:
    net = nn.HybridSequential(prefix="digits_")
    with net.name_scope():
        net.add(nn.Flatten(), nn.Dense(256, activation="relu", in_units=784))
        net.add(nn.Dense(10, in_units=256))
    return models.example("digits", net, (data.normal((batch, 1, 28, 28)),))


def _residual(batch: int) -> Example:
    net = Residual(64, 10, prefix="residual_")
    return models.example("residual", net, (data.normal((batch, 64)),))


POLICY = (17, 64, 64, 6)
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


#: Steps, and the widths of the same net in PyTorch.
STEPS: dict[str, tuple[Callable[[], Example], tuple[int, ...]]] = {
    "policy 17-64-64-6, 32 rows": (lambda: _policy(32), POLICY),
    "policy 17-64-64-6, 256 rows": (lambda: _policy(256), POLICY),
    "critic 17+6, 64, 32 rows": (lambda: _critic(32), ()),
    "residual 64, 16 rows": (lambda: _residual(16), ()),
}


#: The same of larger ones: rows and widths.
LAYERS: dict[str, tuple[int, ...]] = {
    "policy 17-64-64-6, 512 rows": (512, *POLICY),
    "digits 784-128-64-10, 128 rows": (128, 784, 128, 64, 10),
    "worth 23-256-256-1, 256 rows": (256, 23, 256, 256, 1),
    "layers 100-1000-1000-10, 32 rows": (32, 100, 1000, 1000, 10),
    "layers 512-512-512, 64 rows": (64, 512, 512, 512),
}
STEPS |= {name: (lambda sizes=sizes: _layers(*sizes), sizes[1:]) for name, sizes in LAYERS.items()}


@pytest.mark.parametrize("name", STEPS)
def test_small_step(
    name: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    make, widths = STEPS[name]
    example = make()
    args = example.calls[0]
    names = ("data",) if len(args) == 1 else ("data0", "data1")
    shapes = {name: array.shape for name, array in zip(names, args, strict=True)}
    graph = workloads.optimized_graph(graphopt.lift(example.net, shapes), "training")
    small = in_kernels(graph, learns=True)
    fits, told = learns_by_caller, "the calling thread runs all of a step"
    if name in LAYERS:
        fits, told = learns_at_once, "all of a step is one operation"
    assert fits(small)
    counters(f"small_step/{name}", small, frozen=False)
    contenders: dict[str, Any] = {
        "graphopt": Step(make(), as_one=True),
        "in three calls": Step(make(), is_optimized=True),
        "plain": Step(make()),
    }
    weights = [{"weights": contender.weights()} for contender in contenders.values()]
    error = max(relative_error(weights[2], found) for found in weights[:2])
    assert error < 1e-4
    assert told in contenders["graphopt"].step.explain()
    notes: tuple[str, ...] = ()
    if widths and not quick:
        if peers.has("torch_optimizer"):
            contenders["pytorch"] = peers.start(
                "torch_optimizer",
                what="step",
                threads=THREADS,
                widths=widths,
                rows=args[0].shape[0],
            )
        else:
            notes = (peers.missing("torch_optimizer"),)
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        title = "Small net, a step with loss and Adam, float32"
        record(Record(title, name, shown, ratios(medians), TARGETS, notes))


class Step:
    """Forward, half the mean square of errors, backward and Adam.

    As one call, or net, loss and trainer optimized each, or the Blocks hybridized.
    """

    def __init__(
        self, example: Example, *, as_one: bool = False, is_optimized: bool = False
    ) -> None:
        self.args, self.loss = example.calls[0], mx.gluon.loss.L2Loss()
        self.net = net = example.net
        self.params = [p for _, p in sorted(net.collect_params().items())]
        self.trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-4})
        self.wanted = mx.nd.zeros_like(net(*self.args))
        self.step = graphopt.train_step(net, self.loss, self.trainer) if as_one else None
        if is_optimized:
            self.net = graphopt.optimize(net, strict=True)
            self.loss = graphopt.optimize(self.loss, strict=True)
            self.trainer = graphopt.optimize(self.trainer, strict=True)
        elif not as_one:
            for block in (self.net, self.loss):
                block.hybridize(static_alloc=True, static_shape=True)
        for _ in range(2):  # the second one is as all others
            self()

    def __call__(self) -> None:
        if self.step is not None:
            self.step(self.args, self.wanted)
            return
        with mx.autograd.record():
            loss = self.loss(self.net(*self.args), self.wanted)
        loss.backward()
        self.trainer.step(len(self.wanted))

    def weights(self) -> Any:
        """All of them, side by side."""
        return np.concatenate([p.data().asnumpy().ravel() for p in self.params])
