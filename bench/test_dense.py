"""What replace-dense chooses between: a dense layer by our products, and by MXNet's oneDNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.backend.infer import with_types
from graphopt.backend.lower import lower
from graphopt.compat import import_mxnet
from graphopt.ir.parser import parse
from graphopt.kernels.products import dense_means

mx = import_mxnet()

#: Rows, inputs, outputs: the encoder's, and smaller ones.
SIZES = [(1024, 768, 3072), (1024, 3072, 768), (1024, 768, 768), (256, 512, 512)]
TARGETS = {"plain": 1.0}


class Layer:
    """One operator on random values."""

    def __init__(self, op: str, rows: int, depth: int, units: int) -> None:
        graph = with_types(
            parse(
                f"graph g(%x: f32[{rows},{depth}], param %w: f32[{units},{depth}],"
                f" param %b: f32[{units}])"
                f" {{ %y = {op}(%x, %w, %b) {{num_hidden={units}}} return %y }}"
            )
        )
        rng = np.random.default_rng(0)
        shapes = {"x": (rows, depth), "w": (units, depth), "b": (units,)}
        self.arrays = {
            name: mx.nd.array(rng.standard_normal(shape) / depth**0.5)
            for name, shape in shapes.items()
        }
        for array in self.arrays.values():
            array.attach_grad()
        params = {name: self.arrays[name] for name in "wb"}
        self.run = lower(graph, params, training=True, frozen=False, tune=False)
        self.head = mx.nd.array(rng.standard_normal((rows, units)))

    def forward(self) -> Any:
        with mx.autograd.pause():
            return self.run(self.arrays["x"])[0]

    def step(self) -> Any:
        with mx.autograd.record():
            y = self.run(self.arrays["x"])[0]
        y.backward(self.head)
        return y

    def found(self) -> list[np.ndarray]:
        y = self.step()
        return [y.asnumpy(), *(array.grad.asnumpy() for array in self.arrays.values())]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_dense(
    size: tuple[int, int, int],
    backward: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    rows, depth, units = (extent // 16 for extent in size) if quick else size
    layers = {
        "graphopt": Layer("graphopt_dense", rows, depth, units),
        "plain": Layer("FullyConnected", rows, depth, units),
    }
    ours, theirs = (layer.found() for layer in layers.values())
    error = max(
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, theirs, strict=True)
    )
    assert error < 1e-5
    contenders = {n: layer.step if backward else layer.forward for n, layer in layers.items()}
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        flops = rows * depth * units * (6 if backward else 2)
        shown = figures(medians) | {
            "GFLOP/s": flops / medians["graphopt"] / 1e6,
            "plain's": flops / medians["plain"] / 1e6,
            "max error": error,
        }
        title = f"Dense layers, float32, {'forward and backward' if backward else 'forward'}"
        notes = (f"graphopt multiplies {dense_means(mx) or 'by vectors'} here",)
        record(Record(title, f"{rows}x{depth}x{units}", shown, ratios(medians), TARGETS, notes))
