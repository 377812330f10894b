"""Fused kernels: expressions of a few operators beside MXNet and PyTorch, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench.conftest import THREADS
from bench.kernels import SHAPES, Expression, block, expression
from bench.peers.client import PeerError, Peers
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo.checking import relative_error
from graphopt.ir.graph import Graph

#: By forward alone and with backward.
TARGETS: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "chain": (
        {"plain": 30, "torch": 3, "torch compiled": 3},
        {"plain": 20, "torch": 2.5, "torch compiled": 2.5},
    )
}
IMAGES = {"plain": 2.0}
OTHERS = ({"plain": 2.0, "torch compiled": 2.0}, {"plain": 2.0, "torch compiled": 2.0})


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("name", SHAPES)
def test_kernel(
    name: str,
    backward: bool,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    case = expression(name, small=quick)
    fused, plain = graphopt.optimize(block(name)), block(name)
    plain.hybridize(static_alloc=True, static_shape=True)
    run = {"graphopt": caller(case, fused, backward), "plain": caller(case, plain, backward)}
    found, expected = run["graphopt"][1](), run["plain"][1]()
    counters(f"kernels/{name}", _graph(name, backward), frozen=False)
    error = relative_error(expected, found)
    assert error < 1e-5
    contenders: dict[str, Any] = {label: call for label, (call, _) in run.items()}
    contenders["copy"] = copies(case)
    started, notes = torch(case, peers, backward, expected) if not quick else ({}, ())
    medians = race(benchmark, contenders | started, rounds, quick)
    if medians:
        copy = medians.pop("copy")
        share = copy / (2 * case.head.nbytes) * case.nbytes[backward] / medians["graphopt"]
        shown = figures(medians) | {"share of copy speed": share, "max error": error}
        title = "Kernel, forward and backward, float32" if backward else "Kernel, forward, float32"
        usual = OTHERS if len(SHAPES[name]) == 2 else (IMAGES, IMAGES)
        targets = TARGETS.get(name, usual)[backward]
        of = ratios(medians)
        record(
            Record(
                f"{title}: {name}", "x".join(map(str, case.head.shape)), shown, of, targets, notes
            )
        )


def _graph(name: str, backward: bool) -> Graph:
    """The optimized graph of the full-size expression."""
    case = expression(name)
    inputs = [f"data{i}" for i in range(len(case.arrays))] if len(case.arrays) > 1 else ["data"]
    shapes = {name: array.shape for name, array in zip(inputs, case.arrays, strict=True)}
    lifted = graphopt.lift(block(name), shapes)
    return graphopt.run(lifted, mode="training" if backward else "inference").graph


def caller(
    case: Expression, net: Any, backward: bool
) -> tuple[Callable[[], Any], Callable[[], dict[str, np.ndarray]]]:
    """What is timed, and what gives its results."""
    mx = import_mxnet()
    arrays = [mx.nd.array(a) for a in case.arrays]
    head = mx.nd.array(case.head)
    if not backward:
        return lambda: net(*arrays), lambda: {"y": net(*arrays).asnumpy()}
    for array in arrays[: case.learned] if case.name != "masked_softmax" else arrays[:1]:
        array.attach_grad()

    def step() -> Any:
        with mx.autograd.record():
            y = net(*arrays)
        y.backward(head)
        return y

    def results() -> dict[str, np.ndarray]:
        found = {"y": step().asnumpy()}
        return found | {
            f"grad{i}": a.grad.asnumpy() for i, a in enumerate(arrays) if a.grad is not None
        }

    return step, results


def copies(case: Expression) -> Callable[[], Any]:
    """A copy of an array of full size, by the kernels' own threads."""
    from graphopt.kernels.run import run
    from graphopt.kernels.spec_parser import parse

    spec = parse("f32[a] (f32[a]) { %1 = stop %0; return %1:f32[a] }")
    source, target = case.head.ravel(), np.empty(case.head.size, "float32")
    return lambda: run(spec, [source], outputs=[target])


def torch(
    case: Expression, peers: Peers, backward: bool, expected: dict[str, np.ndarray]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """PyTorch, eager and compiled, its results checked; or a note that tells why not."""
    if not peers.has("torch_expression"):
        return {}, (peers.missing("torch_expression"),)
    files = []
    for number, array in enumerate([*case.arrays, case.head]):
        path = peers.folder / f"{case.name}-{number}.npy"
        np.save(path, array)
        files.append(str(path))
    found: dict[str, Any] = {}
    notes = []
    for label, compiled in (("torch", False), ("torch compiled", True)):
        try:
            peer = peers.start(
                "torch_expression",
                name=case.name,
                arrays=files[:-1],
                head=files[-1],
                learned=case.learned,
                backward=backward,
                compiled=compiled,
                threads=THREADS,
            )
            path = peers.folder / "results.npz"
            peer.ask("save", to=str(path))
            results = dict(zip(expected, np.load(path).values(), strict=True))
            assert relative_error(expected, results) < 1e-4
            found[label] = peer
        except PeerError as error:
            notes.append(f"{label}: {error}")
    return found, tuple(notes)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "step"])
def test_small_tensors(
    backward: bool, benchmark: Any, record: Callable[[Record], None], quick: bool, rounds: int
) -> None:
    """A region of 32 elements is not slower than the operators it stands for."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype("float32") for s in ((4, 8), (8,))]
    case = Expression("chain", arrays, rng.normal(size=(4, 8)).astype("float32"), 2)
    fused, plain = graphopt.optimize(block("chain")), block("chain")
    plain.hybridize(static_alloc=True, static_shape=True)
    contenders = {
        n: caller(case, net, backward)[0] for n, net in (("graphopt", fused), ("plain", plain))
    }
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        shown = {f"{name} us": ms * 1e3 for name, ms in medians.items()}
        title = "Chain on 4x8 elements" + (", forward and backward" if backward else "")
        record(Record(title, "chain", shown, ratios(medians), {"plain": 1.0}))
