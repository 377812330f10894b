"""Calls on one to three threads that have to give equal bits; prints the names of those checked.

Run by test_threads.py with MXNet's engine that computes in the thread that calls: by others, a
setting of OpenMP in this thread says nothing about the threads that compute.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from graphopt import nn
from graphopt.backend.invoke import invoke
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge
from graphopt.kernels.convolutions.marked import (
    COLUMNS,
    DIRECTIONS,
    MARK,
    PAIRED_WINOGRAD4,
    WINOGRAD4,
    mark,
)
from graphopt.kernels.convolutions.spec import DIRECT, PAIRED
from graphopt.passes.recurrence.body import translate
from graphopt.passes.recurrence.cells import Cell, body_of

mx = import_mxnet()

Found = list[Any]


def noise(*shape: int, seed: int = 0) -> Any:
    return mx.nd.array(np.random.default_rng(seed).uniform(-1, 1, shape))


def learnt(
    net: Any, x: Any, call: Callable[[], Any], parameters: bool = True, seed: int = 1
) -> Found:
    """Outputs, gradients of ``x``, and those of parameters if they are asked for."""
    x.attach_grad()
    with mx.autograd.record():
        outputs = call()
        outputs = [*outputs] if isinstance(outputs, (list, tuple)) else [outputs]
        heads = [noise(*out.shape, seed=seed + n) for n, out in enumerate(outputs)]
    mx.autograd.backward(outputs, heads)
    found = [*outputs, x.grad]
    return [*found, *(p.grad() for p in net.collect_params().values())] if parameters else found


def made(net: Any) -> Any:
    net.initialize(mx.init.Uniform(0.2))
    return net


def recurrence(kind: str, lengths: bool, units: int = 65) -> Callable[[], Found]:
    """Chunks, and so sums of weights' gradients, depend on threads; what is computed does not."""
    net = made(getattr(nn, kind)(units, input_size=33, bidirectional=True))
    x, ends = noise(7, 80, 33), mx.nd.array(np.arange(80) % 8) if lengths else None

    def run() -> Found:
        states = net.begin_state(80)

        def call() -> Found:
            out, last = net(x, states, ends)
            return [out, *last]

        return [*call(), *learnt(net, x, call, parameters=False)]

    return run


def dense() -> Callable[[], Found]:
    x, weights, bias = noise(700, 400), noise(300, 400, seed=1), noise(300, seed=2)

    def run() -> Found:
        weights.attach_grad()

        def call() -> Any:
            return invoke("graphopt_dense", [x, weights, bias], {"num_hidden": 300})

        return [*learnt(None, x, call, parameters=False), weights.grad]

    return run


def lookups() -> Callable[[], Found]:
    """Gradients of a table and of the matrices it is multiplied with."""
    cell = Cell("lstm", 33, 65)
    spec = translate(body_of(cell, 80, "float32"), 1, 2).spec
    table = noise(50, 33)
    matrices = [noise(*shape, seed=2) for shape in spec.matrices]
    bias, numbers = noise(260, seed=3), noise(7, 80, seed=4) * 30 + 25
    attrs = {"spec": str(spec), "zero_states": True, "indexed": True, "stash": True}

    def run() -> Found:
        matrices[0].attach_grad()

        def call() -> Any:
            return invoke("graphopt_recurrence", [table, *matrices, bias, numbers], attrs)[0]

        return [*learnt(None, table, call, parameters=False), matrices[0].grad]

    return run


def trees() -> Callable[[], Found]:
    net = made(nn.ChildSumTreeLSTM(65, input_size=33))
    rng = np.random.default_rng(0)
    parents = [-1 if n % 12 == 0 else int(rng.integers(n - n % 12, n)) for n in range(1200)]
    x = noise(1200, 33)
    places = mx.nd.array(parents, dtype="int32")
    return lambda: learnt(net, x, lambda: net(x, places))


def products() -> Callable[[], Found]:
    left, right = noise(9, 70, 50), noise(9, 33, 50)

    def run() -> Found:
        right.attach_grad()

        def call() -> Any:
            flags = {"transpose_a": False, "transpose_b": True}
            return invoke("graphopt_batch_dot", [left, right], flags)

        return [*learnt(None, left, call, parameters=False), right.grad]

    return run


def attention() -> Callable[[], Found]:
    """Of 12 products of 150 x 170 scores, over several blocks of rows, with Dropout."""
    q, kv, bias = noise(150, 3, 48), noise(170, 3, 96, seed=1), noise(1, 150, 170, seed=2)
    seed = mx.nd.array([7, 9], dtype="int32")
    kv.attach_grad()
    bias.attach_grad()
    attrs = {
        "spec": (
            "f32[a,b|c] (f32[a,b,c], f32[1,b,c])"
            " { %2 = add %0 %1; %3 = softmax %2; return %3:f32[a,b,c] }"
        ),
        "scores": 0,
        "queries": (0, 2, 4, 1, 0),
        "keys": (1, 2, 4, 2, 0),
        "values": (1, 2, 4, 2, 1),
        "mixed": (2, 4, 1, 0),
        "scaled": True,
        "heads": 0,
        "p": 0.2,
        "salt": 1,
    }

    def call() -> Any:
        return invoke("graphopt_attention", [q, kv, bias, seed], attrs)

    return lambda: [*learnt(None, q, call, parameters=False), kv.grad, bias.grad]


def convolution(
    name: str, kernel: int, channels: int, filters: int, groups: int = 1, images: int = 3
) -> Callable[[], Found]:
    """A convolution marked for an algorithm in all directions."""
    x, w = (
        noise(images, channels, 21, 22),
        noise(filters, channels // groups, kernel, kernel, seed=1),
    )
    options = {
        "kernel": (kernel, kernel),
        "num_filter": filters,
        "num_group": groups,
        "no_bias": True,
    }
    marked = {MARK: mark(dict.fromkeys(DIRECTIONS, name))}

    def run() -> Found:
        w.attach_grad()
        found = learnt(None, x, lambda: mx.nd.Convolution(x, w, **options, **marked), False)
        return [*found, w.grad]

    return run


def batch_norm(channels: int, extent: int) -> Callable[[], Found]:
    x, residual = noise(5, channels, extent, extent), noise(5, channels, extent, extent, seed=1)
    numbers = [noise(channels, seed=2 + at) for at in range(3)] + [mx.nd.ones(channels)]

    def run() -> Found:
        residual.attach_grad()
        numbers[0].attach_grad()

        def call() -> Any:
            attrs = {"fix_gamma": False, "function": "relu", "residual": True}
            return invoke("graphopt_batch_norm", [x, *numbers, residual], attrs)

        return [*learnt(None, x, call, parameters=False), residual.grad, numbers[0].grad]

    return run


CASES: dict[str, Callable[[], Callable[[], Found]]] = {
    "LSTM": lambda: recurrence("LSTM", False),
    "LSTM with lengths": lambda: recurrence("LSTM", True),
    "GRU": lambda: recurrence("GRU", False),
    "LSTM of a matrix unit": lambda: recurrence("LSTM", False, units=100),
    "and with lengths": lambda: recurrence("LSTM", True, units=100),
    "GRU of a matrix unit": lambda: recurrence("GRU", False, units=120),
    "wide LSTM": lambda: recurrence("LSTM", True, units=200),
    "dense": dense,
    "lookups": lookups,
    "trees": trees,
    "batch_dot": products,
    "attention": attention,
    "Winograd": lambda: convolution(WINOGRAD4, 3, 48, 64),
    "Winograd of a large layer": lambda: convolution(WINOGRAD4, 3, 208, 176),
    "Winograd in pairs": lambda: convolution(PAIRED_WINOGRAD4, 3, 48, 64),
    "Winograd of a large layer in pairs": lambda: convolution(PAIRED_WINOGRAD4, 3, 208, 176),
    "columns": lambda: convolution(COLUMNS, 5, 20, 50, images=24),
    "BatchNorm": lambda: batch_norm(8, 30),
    "BatchNorm of large images": lambda: batch_norm(3, 200),
    "groups": lambda: convolution(DIRECT, 3, 48, 48, groups=12),
    "pairs": lambda: convolution(PAIRED, 1, 48, 64),
    "pairs of a large layer": lambda: convolution(PAIRED, 1, 320, 288),
}


def main() -> None:
    own = bridge.load(mx)
    openmp = ctypes.CDLL("libgomp.so.1")
    for name, case in CASES.items():
        run, found = case(), []
        for threads in (1, 2, 3):
            openmp.omp_set_num_threads(threads)
            assert own.graphopt_threads() == threads
            found.append([array.asnumpy() for array in run()])
        for at, (one, *others) in enumerate(zip(*found, strict=True)):
            for other in others:
                np.testing.assert_array_equal(other, one, err_msg=f"{name}, array {at}")
        assert any(array.any() for array in found[0]), name
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
