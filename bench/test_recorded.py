"""Plain Blocks: as their first calls tell, recorded, child by child, and as MXNet runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import plain_nets, workloads
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo.checking import relative_error

mx = import_mxnet()

LARGEST_ERROR = 1e-4
#: Winograd's algorithm, which a quick run does not choose, rounds twenty times as much.
LARGEST_ERROR_BY_WINOGRAD = 5e-2
#: How much farther from float64 than MXNet's a gradient may fall: a few numbers at kinks decide.
LUCK = 2
#: What returns a state beside its scores, so that a step is two programs.
STATEFUL = "language_model", "step"
#: Calls after which a Block knows which way it is run.
TRIAL = 120


def _encoder(quick: bool) -> tuple[Any, tuple[Any, ...]]:
    batch, steps = (2, 5) if quick else (32, 40)
    words = mx.np.random.randint(0, 1000, (batch, steps))
    return plain_nets.Encoder(), (words, mx.np.random.randint(1, steps, (batch,)))


def _language_model(quick: bool) -> tuple[Any, tuple[Any, ...]]:
    batch, steps = (2, 5) if quick else (32, 35)
    net = plain_nets.LanguageModel()
    letters = mx.np.random.randint(0, 28, (batch, steps))
    return net, (letters, net.rnn.begin_state(batch_size=batch))


def _residual(quick: bool) -> tuple[Any, tuple[Any, ...]]:
    shape = (2, 3, 16, 16) if quick else (32, 3, 32, 32)
    return plain_nets.ResNet(), (mx.nd.random.normal(shape=shape),)


#: How to make a net and its arguments, and whether it is of ``mx.np``.
NETS: dict[str, tuple[Callable[[bool], tuple[Any, tuple[Any, ...]]], bool]] = {
    "encoder": (_encoder, True),
    "language_model": (_language_model, True),
    "residual": (_residual, False),
}


@contextmanager
def interface(is_np: bool) -> Iterator[None]:
    if is_np:
        mx.npx.set_np()
    try:
        yield
    finally:
        mx.npx.reset_np()


@pytest.mark.parametrize("what", ["inference", "step"])
@pytest.mark.parametrize("name", NETS)
def test_recorded(
    name: str,
    what: str,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    make, is_np = NETS[name]
    with interface(is_np):
        mx.random.seed(1)
        net, args = make(quick)
        net.initialize(mx.init.Xavier())
        net(*args)
        mode = "inference" if what == "inference" else "training"
        recorded = graphopt.optimize(net, mode=mode, record=True)
        children = graphopt.optimize(net, mode=mode, record=False)
        tried = graphopt.optimize(net, mode=mode)
        run = _forward if what == "inference" else _step
        run(recorded, args)  # a first step is run call by call
        expected, found = run(net, args), run(recorded, args)
        error = relative_error(expected, found)
        largest = LARGEST_ERROR if quick or is_np else LARGEST_ERROR_BY_WINOGRAD
        if error >= largest:  # ReLUs at their kinks, behind a BatchNorm
            net.cast("float64")
            exact = run(net, tuple(x.astype("float64") for x in args))
            net.cast("float32")
            apart = workloads.distance(exact, found)
            assert apart <= LUCK * workloads.distance(exact, expected)
        entries = recorded.graphopt_state.recorded.programs.entries
        assert len(entries) == (2 if (name, what) == STATEFUL else 1)
        for part, entry in enumerate(entries if quick else ()):
            graph = workloads.optimized_graph(entry.original, entry.mode)
            title = f"recorded/{name}/{what}" + (f"/part {part + 1}" if part else "")
            counters(title, graph, frozen=mode == "inference")
        hybridized, _ = make(quick)  # another one: what is hybridized stays so
        hybridized.initialize(mx.init.Xavier())
        hybridized.hybridize(static_alloc=True, static_shape=True)
        for _ in range(1 if quick else TRIAL):
            run(tried, args)
        (ways,) = tried.graphopt_state.ways.values()
        contenders: dict[str, Any] = {
            "graphopt": lambda: run(tried, args),
            "recorded": lambda: run(recorded, args),
            "child by child": lambda: run(children, args),
            "plain": lambda: run(net, args),
            "children hybridized": lambda: run(hybridized, args),
        }
        medians = race(benchmark, contenders, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        title = f"Plain Blocks, {what}, float32"
        record(Record(title, name, shown, ratios(medians), {}, (f"{name}: {ways.told()}",)))


def _forward(net: Any, args: tuple[Any, ...]) -> dict[str, np.ndarray]:
    found = net(*args)
    return {"output": (found[0] if isinstance(found, tuple) else found).asnumpy()}


def _step(net: Any, args: tuple[Any, ...]) -> dict[str, np.ndarray]:
    with mx.autograd.record():
        found = net(*args)
        found = found[0] if isinstance(found, tuple) else found
        loss = (found * found * found).mean()  # the square of what is normalized is constant
    loss.backward()
    return workloads.gradients(net)
