"""Recurrent nets to be timed; plain MXNet times them in a process without graphopt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np

gluon = mx.gluon


@dataclass(frozen=True)
class Size:
    """Of a recurrence: steps, sequences, columns of the input, units, layers."""

    steps: int
    batch: int
    columns: int
    units: int
    layers: int = 1

    def __str__(self) -> str:
        """As in a table."""
        layers = f", {self.layers} layers" if self.layers > 1 else ""
        return f"T={self.steps} B={self.batch} I={self.columns} H={self.units}{layers}"


SIZES = {
    "sentiment": Size(500, 256, 32, 100),
    "unrolled LSTM": Size(40, 128, 57, 128),
    "unrolled custom cell": Size(40, 128, 57, 128),
    "language model": Size(35, 32, 650, 650, 2),
}
SMALL = Size(5, 6, 4, 8)


class Sentiment(gluon.Block):
    """Dense, LSTM, Dense, called from Python."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.enter = gluon.nn.Dense(size.columns, flatten=False, in_units=size.columns)
            self.lstm = gluon.rnn.LSTM(size.units, input_size=size.columns)
            self.leave = gluon.nn.Dense(2, flatten=False, in_units=size.units)

    def forward(self, x: Any) -> Any:
        return self.leave(self.lstm(self.enter(x)))


class LeakyGated(gluon.rnn.HybridRecurrentCell):
    """A cell that no library knows: one state that leaks, and a gate that lets in what is new."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        self._units = size.units
        with self.name_scope():
            self.gate = gluon.nn.Dense(size.units, in_units=size.columns + size.units)
            self.new = gluon.nn.Dense(size.units, in_units=size.columns)
            self.back = gluon.nn.Dense(size.units, use_bias=False, in_units=size.units)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [{"shape": (batch_size, self._units), "__layout__": "NC"}]

    def reset(self) -> None:
        # The children are layers, which Gluon's own does not expect.
        self._init_counter = self._counter = -1

    def hybrid_forward(self, F: Any, x: Any, states: Any) -> Any:
        (state,) = states
        gate = F.sigmoid(self.gate(F.concat(x, state, dim=1)))
        new = F.tanh(self.new(x) + self.back(state))
        state = 0.9 * (1 - gate) * state + gate * new
        return state, [state]

    def _alias(self) -> str:
        return "leaky"


class Unrolled(gluon.HybridBlock):
    """A cell applied to every step, as gluon's ``unroll`` does."""

    def __init__(self, make: Callable[[Size], Any], size: Size, **more: Any) -> None:
        super().__init__(**more)
        self._steps = size.steps
        with self.name_scope():
            self.cell = make(size)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.cell.unroll(self._steps, x, layout="TNC", merge_outputs=True)[0]


def lstm_cell(size: Size) -> Any:
    return gluon.rnn.LSTMCell(size.units, input_size=size.columns)


def net_of(name: str, size: Size) -> Any:
    """An initialized net."""
    if name == "sentiment":
        net: Any = Sentiment(size, prefix="net_")
    elif name == "unrolled LSTM":
        net = Unrolled(lstm_cell, size, prefix="net_")
    elif name == "unrolled custom cell":
        net = Unrolled(LeakyGated, size, prefix="net_")
    else:
        net = gluon.nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(gluon.rnn.LSTM(size.units, size.layers, input_size=size.columns))
    net.initialize(mx.init.Xavier())
    return net


def as_hybrid(name: str, net: Any) -> Any:
    """The same net, with the same parameters, that MXNet can hybridize as a whole."""
    if name != "sentiment":
        return net
    whole = gluon.nn.HybridSequential(prefix="")
    whole.add(net.enter, net.lstm, net.leave)
    return whole


def lstm_of(name: str, net: Any) -> Any:
    """The LSTM in a net, to be compared with PyTorch's; ``None`` if it has none."""
    return {
        "sentiment": lambda: net.lstm,
        "unrolled LSTM": lambda: net.cell,
        "language model": lambda: net[0],
    }.get(name, lambda: None)()


def torch_weights(layer: Any) -> list[np.ndarray]:
    """The parameters of an LSTM in PyTorch's order, which has the same order of gates."""
    found = {
        name.removeprefix(layer.prefix): p.data().asnumpy()
        for name, p in layer.collect_params().items()
    }
    kinds = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
    if "i2h_weight" in found:
        return [found[kind] for kind in kinds]
    layers = range(len(found) // len(kinds))
    ways = ("l", "r") if "r0_i2h_weight" in found else ("l",)
    return [
        found[f"{way}{n}_{kind}"]
        for n in list(layers)[: len(found) // len(kinds) // len(ways)]
        for way in ways
        for kind in kinds
    ]
