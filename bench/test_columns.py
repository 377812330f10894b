"""Convolutions that oneDNN has no kernels for, by columns and as MXNet computes them."""

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

#: Winograd's algorithm, which may be faster in inference, is off by more than sums are.
LARGEST_ERROR = 1e-4

#: Images, filters, and what the window is.
LAYERS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "50x1x56x300, 100 of 3x300": ((50, 1, 56, 300), 100, {"kernel": (3, 300)}),
    "50x300x56, 100 of 3": ((50, 300, 56), 100, {"kernel": (3,)}),
    "8x1x16000, 64 of 80, stride 4": ((8, 1, 16000), 64, {"kernel": (80,), "stride": (4,)}),
    "64x20x12x12, 50 of 5x5": ((64, 20, 12, 12), 50, {"kernel": (5, 5)}),
    "8x12x56x56, 12 of 3x3": ((8, 12, 56, 56), 12, {"kernel": (3, 3), "pad": (1, 1)}),
    "2x256x48x48, 21 of 3x3": ((2, 256, 48, 48), 21, {"kernel": (3, 3), "pad": (1, 1)}),
}


@pytest.mark.parametrize("trains", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(
    name: str,
    trains: bool,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    """By executors; a step has all gradients."""
    shape, filters, window = LAYERS[name]
    symbol = mx.sym.Convolution(mx.sym.var("data"), num_filter=filters, name="layer", **window)
    counters(
        f"columns/{name}",
        workloads.optimized_graph(graphopt.lift(symbol, {"data": shape}), "training"),
        frozen=False,
    )
    shape = (2, *shape[1:]) if quick else shape
    executors = {}
    for contender in ("graphopt", "plain"):
        executor = symbol.simple_bind(mx.cpu(), grad_req="write", data=shape)
        rng = np.random.default_rng(0)
        for array in executor.arg_dict.values():
            array[:] = rng.standard_normal(array.shape) * 0.1
        fast = contender == "graphopt"
        executors[contender] = graphopt.optimize(executor, strict=True) if fast else executor

    def run(executor: Any) -> None:
        executor.forward(is_train=trains)
        if trains:
            executor.backward(executor.outputs)
        mx.nd.waitall()

    for executor in executors.values():
        run(executor)
    found = [_found(executor, trains) for executor in executors.values()]
    error = relative_error(found[1], found[0])
    assert error < LARGEST_ERROR
    told = [line for line in executors["graphopt"].explain().splitlines() if "columns" in line]
    contenders = {key: lambda e=executor: run(e) for key, executor in executors.items()}
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        title = f"Convolutions without kernels, {'step' if trains else 'forward'}, float32"
        record(Record(title, name, shown, ratios(medians), {"plain": 1.0}, tuple(told[:1])))


def _found(executor: Any, trains: bool) -> dict[str, Any]:
    found = {"output": executor.outputs[0].asnumpy()}
    gradients = executor.grad_dict.items() if trains else ()
    return found | {f"gradient of {name}": array.asnumpy() for name, array in gradients}
