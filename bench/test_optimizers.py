"""A trainer's step, gradients given: optimized, by MXNet, and by PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench.conftest import THREADS
from bench.peers.client import Peers
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet

mx = import_mxnet()

TARGETS = {"plain": 1.0}

#: Of BERT base, a Transformer's layer and a small policy.
_LAYER = [*[(768, 768)] * 4, (3072, 768), (768, 3072), *[(768,)] * 9, (3072,)]
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "BERT base, 195 arrays": [(30522, 768), (512, 768), (2, 768), *_LAYER * 12],
    "policy 17-64-64-6, 6 arrays": [(64, 17), (64,), (64, 64), (64,), (6, 64), (6,)],
}
#: By MXNet's names; PyTorch's options where they have others.
OPTIMIZERS: dict[str, tuple[str, dict[str, float]]] = {
    "SGD": ("sgd", {}),
    "SGD, momentum": ("sgd", {"momentum": 0.9}),
    "Adam": ("adam", {}),
    "AdaGrad": ("adagrad", {}),
    "LAMB": ("lamb", {"wd": 0.01}),
    "LARS": ("lars", {"momentum": 0.9, "wd": 1e-4}),
}
#: That PyTorch has none of.
_MXNETS_OWN = ("LAMB", "LARS")
_RATE = 1e-6


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("size", SHAPES)
def test_step(
    size: str,
    optimizer: str,
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    shapes = SHAPES[size]
    if quick:
        shapes = [tuple(min(extent, 9) for extent in shape) for shape in shapes]
    name, options = OPTIMIZERS[optimizer]
    steps = {}
    for contender in ("graphopt", "plain"):
        params = _parameters(shapes)
        trainer = mx.gluon.Trainer(params, name, {"learning_rate": _RATE, **options})
        if contender == "graphopt":
            trainer = graphopt.optimize(trainer, strict=True)
        steps[contender] = _step(params, trainer)
    error = max(
        float(np.abs(one.asnumpy() - other.asnumpy()).max())
        for one, other in zip(steps["graphopt"](), steps["plain"](), strict=True)
    )
    assert error < 1e-6
    contenders: dict[str, Any] = dict(steps)
    notes: tuple[str, ...] = ()
    if optimizer in _MXNETS_OWN:
        notes = (f"PyTorch has no {optimizer}",)
    elif not quick and peers.has("torch_optimizer"):
        contenders["pytorch"] = peers.start(
            "torch_optimizer",
            what="optimizer",
            shapes=shapes,
            optimizer=name,
            rate=_RATE,
            options=options,
            threads=THREADS,
        )
    elif not quick:
        notes = (peers.missing("torch_optimizer"),)
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        title = "A trainer's step, float32"
        record(Record(title, f"{optimizer}, {size}", shown, ratios(medians), TARGETS, notes))


@pytest.mark.parametrize("size", SHAPES)
def test_clip(
    size: str,
    benchmark: Any,
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    """Gradients whose norm is below the bound, as most are once a net has begun to learn."""
    shapes = SHAPES[size]
    if quick:
        shapes = [tuple(min(extent, 9) for extent in shape) for shape in shapes]
    given = [parameter.list_grad()[0] for parameter in _parameters(shapes)]
    most = 1e6
    clips = {
        "graphopt": graphopt.clip_global_norm,
        "plain": mx.gluon.utils.clip_global_norm,
    }
    norms = [float(clip(given, most)) for clip in clips.values()]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)  # MXNet's is a sum of float32
    contenders: dict[str, Any] = {
        name: lambda clip=clip: clip(given, most) for name, clip in clips.items()
    }
    notes: tuple[str, ...] = ()
    if not quick and peers.has("torch_optimizer"):
        contenders["pytorch"] = peers.start(
            "torch_optimizer", what="clip", threads=THREADS, shapes=shapes, most=most
        )
    elif not quick:
        notes = (peers.missing("torch_optimizer"),)
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        title = "Gradients clipped by their norm, float32"
        record(Record(title, size, figures(medians), ratios(medians), TARGETS, notes))


def _parameters(shapes: list[tuple[int, ...]]) -> list[Any]:
    params = []
    for number, shape in enumerate(shapes):
        parameter = mx.gluon.Parameter(f"weight{number}", shape=shape)
        parameter.initialize(mx.init.Constant(0.5))
        parameter.list_grad()[0][:] = 0.01
        params.append(parameter)
    return params


def _step(params: list[Any], trainer: Any) -> Callable[[], list[Any]]:
    weights = [parameter.list_data()[0] for parameter in params]

    def step() -> list[Any]:
        for weight in weights:
            weight._fresh_grad = True  # as a backward pass tells
        trainer.step(1)
        return weights

    return step
