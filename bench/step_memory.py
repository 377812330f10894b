"""Runs training steps of a net in this process and tells what memory they took."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphopt
from graphopt.backend.step import StepEngine
from graphopt.compat import import_mxnet
from graphopt.memory.listing import allocated

mx = import_mxnet()
gluon = mx.gluon

#: Nets by name: a Block with its inputs' shapes for a batch.
Case = tuple[Callable[[], Any], Callable[[int], tuple[int, ...]]]


def cases() -> dict[str, Case]:
    """Nets whose step takes much memory."""
    zoo = gluon.model_zoo.vision

    def image(size: int) -> Callable[[int], tuple[int, ...]]:
        return lambda batch: (batch, 3, size, size)

    return {
        "resnet50": (zoo.resnet50_v1, image(224)),
        "vgg16": (zoo.vgg16, image(224)),
        "inception-v3": (zoo.inception_v3, image(299)),
        "densenet121": (zoo.densenet121, image(224)),
        "encoder": (Encoder, lambda batch: (batch, 128, 256)),
        "lstm": (lstm, lambda batch: (batch, 40, 64)),
    }


class Encoder(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Twelve layers of a transformer's encoder, without attention's mask."""

    def __init__(self, layers: int = 12, units: int = 256, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.layers = gluon.nn.HybridSequential()
            for _ in range(layers):
                self.layers.add(Layer(units, 4))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.mean(self.layers(x), axis=1)


class Layer(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Self-attention and a feed-forward part, normalized behind each."""

    def __init__(self, units: int, heads: int, **more: Any) -> None:
        super().__init__(**more)
        self._heads, self._width = heads, units // heads
        with self.name_scope():
            self.all = gluon.nn.Dense(3 * units, flatten=False, in_units=units)
            self.out = gluon.nn.Dense(units, flatten=False, in_units=units)
            self.up = gluon.nn.Dense(4 * units, flatten=False, in_units=units)
            self.down = gluon.nn.Dense(units, flatten=False, in_units=4 * units)
            self.norm1 = gluon.nn.LayerNorm(in_channels=units)
            self.norm2 = gluon.nn.LayerNorm(in_channels=units)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        query, key, value = (self._split(F, part) for part in F.split(self.all(x), 3, axis=2))
        weights = F.softmax(F.batch_dot(query, key, transpose_b=True) / self._width**0.5)
        found = F.reshape(F.batch_dot(weights, value), (-4, -1, self._heads, 0, 0))
        found = F.reshape(F.transpose(found, (0, 2, 1, 3)), (0, 0, -3))
        x = self.norm1(x + self.out(found))
        return self.norm2(x + self.down(F.LeakyReLU(self.up(x), act_type="gelu")))

    def _split(self, F: Any, x: Any) -> Any:
        x = F.reshape(x, (0, 0, -4, self._heads, self._width))
        return F.reshape(F.transpose(x, (0, 2, 1, 3)), (-3, 0, 0))


def lstm() -> Any:
    """Two layers of LSTM cells, unrolled over the length of the input."""
    return Unrolled()


class Unrolled(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Two layers of LSTM cells, unrolled over ``length`` steps."""

    def __init__(self, length: int = 40, cells: Any = None) -> None:
        super().__init__(prefix="unrolled_")
        self._length = length
        with self.name_scope():
            self.cells = cells or gluon.rnn.HybridSequentialRNNCell(prefix="cells_")
            if cells is None:
                for _ in range(2):
                    self.cells.add(gluon.rnn.LSTMCell(256))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        self.cells.reset()
        return self.cells.unroll(self._length, x, layout="NTC", merge_outputs=True)[0]


class Step:
    """Training steps of one net: forward, backward, no optimizer.

    Args:
        name: of :func:`cases`.
        batch: samples.
        how: ``gluon`` (hybridized, static memory), ``executor``, ``mirror``, ``search`` (MXNet's
            executor with its own options), ``graphopt`` or ``graphopt:900MB``.
    """

    def __init__(self, name: str, batch: int, how: str) -> None:
        make, shape = cases()[name]
        self._net = net = make()
        mx.random.seed(0)
        net.initialize(mx.init.Xavier(magnitude=2))
        self._x = mx.nd.random.uniform(shape=shape(batch))
        self._executor = None
        way, _, budget = how.partition(":")
        if way == "gluon":
            net.hybridize(static_alloc=True, static_shape=True)
        elif way == "graphopt":
            net = graphopt.optimize(net, memory=budget or None)
        else:
            self._bind(way)
        self.run = net
        self.way = way

    def __call__(self) -> Any:
        if self._executor is not None:
            out = self._executor.forward(is_train=True)[0]
            self._executor.backward([mx.nd.ones_like(out)])
            return out
        with mx.autograd.record():
            out = self.run(self._x)
        out.backward()
        return out

    @property
    def planned(self) -> float:
        """MiB that MXNet planned for what a step computes; nobody knows of Gluon's."""
        if self._executor is not None:
            return allocated(self._executor.debug_str())
        entries = self.run.graphopt_state.compiled.entries if self.way == "graphopt" else []
        engines = [entry.lowered._engine for entry in entries]
        return next((e.megabytes for e in engines if isinstance(e, StepEngine)), float("nan"))

    def told(self) -> str:
        """What graphopt says about memory."""
        if self.way != "graphopt":
            return ""
        found = re.search(r"memory: (.*)", self.run.explain())
        return found.group(1) if found else ""

    def _bind(self, way: str) -> None:
        import os

        os.environ["MXNET_BACKWARD_DO_MIRROR"] = "1" if way == "mirror" else "0"
        if way == "search":
            os.environ["NNVM_AUTO_SEARCH_MATCH_RANGE"] = "1"
        symbol = self._net(mx.sym.var("data"))
        self._net(self._x[:1])
        known = {p.name: p for p in self._net.collect_params().values()}
        arguments = {n: known[n].data() if n in known else self._x for n in symbol.list_arguments()}
        gradients = {n: known[n].grad() for n in arguments if n in known}
        self._executor = symbol.bind(
            mx.cpu(),
            arguments,
            gradients,
            {n: "write" if n in gradients else "null" for n in arguments},
            {n: known[n].data() for n in symbol.list_auxiliary_states()},
        )


def buckets(batch: int, way: str, lengths: str) -> None:
    """Two steps of one net on sequences of each length."""
    sizes = [int(length) for length in lengths.split(",")]
    x = mx.nd.random.uniform(shape=(batch, max(sizes), 64))
    net = gluon.nn.HybridSequential()
    net.add(gluon.rnn.LSTM(256, 2, layout="NTC"), gluon.nn.Dense(64, flatten=False))
    net.initialize(mx.init.Xavier())
    if way == "gluon":
        net.hybridize(static_alloc=True, static_shape=True)
    else:
        net = graphopt.optimize(net, max_shapes={"data": x.shape})
    for _ in range(2):
        for size in sizes:
            with mx.autograd.record():
                out = net(x[:, :size])
            out.backward()
            mx.nd.waitall()


def peak_mb() -> float:
    """The most memory this process ever had (MiB)."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if "VmHWM" in line)) / 1024


def main() -> None:
    """Run steps, and print what they took as JSON."""
    name, batch, how, steps = sys.argv[1:5]
    before = peak_mb()
    if name == "buckets":
        buckets(int(batch), *how.split(":"))
        print(json.dumps({"peak": peak_mb() - before}))
        return
    step = Step(name, int(batch), how)
    times = []
    for _ in range(int(steps)):
        start = time.perf_counter()
        step().wait_to_read()
        mx.nd.waitall()
        times.append(time.perf_counter() - start)
    found = {
        "peak": peak_mb() - before,
        "planned": step.planned,
        "seconds": min(times[1:] or times),
        "first": times[0],
        "told": step.told(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
