"""Steps of MXNet's RNN operator as graphs of MXNet's operators.

Gates have the order of MXNet's operator and of Gluon's cells: input, forget, cell, output for the
LSTM (Hochreiter and Schmidhuber 1997, with forget gates); reset, update, new for the GRU (Cho et
al. 2014, with the reset gate behind the product, as in cuDNN).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Node, Value
from graphopt.ir.types import TensorType

#: Gates of each mode of the RNN operator.
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


@dataclass(frozen=True)
class Cell:
    """One direction of one layer.

    Attributes:
        mode: of the RNN operator.
        inputs: columns of what it reads.
        units: columns of its state.
        projected: columns of the state after projection; 0 without.
    """

    mode: str
    inputs: int
    units: int
    projected: int = 0

    @property
    def states(self) -> tuple[int, ...]:
        """Columns of its states."""
        hidden = self.projected or self.units
        return (hidden, self.units) if self.mode == "lstm" else (hidden,)

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Shapes of its parameters by name."""
        gates, hidden = GATES[self.mode] * self.units, self.projected or self.units
        found: dict[str, tuple[int, ...]] = {
            "i2h_weight": (gates, self.inputs),
            "h2h_weight": (gates, hidden),
        }
        if self.projected:
            found["h2r_weight"] = (self.projected, self.units)
        return found | {"i2h_bias": (gates,), "h2h_bias": (gates,)}


def body_of(cell: Cell, batch: int, dtype: str) -> Graph:
    """The step of a cell: reads x, states, parameters; returns next states and what it emits."""
    return _Maker(cell, batch, dtype).make()


class _Maker:
    def __init__(self, cell: Cell, batch: int, dtype: str) -> None:
        self.cell, self.batch, self.dtype = cell, batch, dtype
        self.body = Graph("step")

    def make(self) -> Graph:
        cell = self.cell
        x = self.body.add_input("x", DATA, self._type(cell.inputs))
        states = [
            self.body.add_input(f"state{n}", DATA, self._type(width))
            for n, width in enumerate(cell.states)
        ]
        learned = {
            name: self.body.add_input(name, PARAM, TensorType(self.dtype, shape))
            for name, shape in cell.parameters.items()
        }
        i2h = self._dense(x, learned["i2h_weight"], learned["i2h_bias"], "i2h")
        h2h = self._dense(states[0], learned["h2h_weight"], learned["h2h_bias"], "h2h")
        if cell.mode == "lstm":
            state = self._lstm(i2h, h2h, states[1])
        elif cell.mode == "gru":
            state = [self._gru(i2h, h2h, states[0])]
        else:
            gates = self._op("elemwise_add", [i2h, h2h], cell.units)
            state = [self._activation(gates.out(), cell.mode.removeprefix("rnn_"))]
        if cell.projected:
            dense = {"num_hidden": cell.projected, "no_bias": True, "flatten": False}
            reads = [state[0], learned["h2r_weight"]]
            state[0] = self._op("FullyConnected", reads, cell.projected, **dense)
        self.body.set_outputs([*state, state[0]])
        return self.body

    def _type(self, width: int) -> TensorType:
        return TensorType(self.dtype, (self.batch, width))

    def _op(self, op: str, inputs: Sequence[Node | Value], width: int, **attrs: object) -> Node:
        name = self.body.unique_name(op.lower())
        return self.body.add(op, inputs, attrs, [self._type(width)], name)

    def _dense(self, x: Node, weight: Node, bias: Node, name: str) -> Node:
        width = GATES[self.cell.mode] * self.cell.units
        product = self.body.add(
            "FullyConnected",
            [x, weight],
            {"num_hidden": width, "no_bias": True, "flatten": False},
            [self._type(width)],
            name,
        )
        return self._op("broadcast_add", [product, bias], width)

    def _gates(self, source: Node) -> list[Value]:
        count, units = GATES[self.cell.mode], self.cell.units
        node = self.body.add(
            "SliceChannel",
            [source],
            {"num_outputs": count, "axis": 1},
            [self._type(units)] * count,
            self.body.unique_name("gates"),
        )
        return list(node.values)

    def _activation(self, value: Value, kind: str) -> Node:
        return self._op("Activation", [value], self.cell.units, act_type=kind)

    def _pair(self, op: str, a: Node | Value, b: Node | Value) -> Node:
        return self._op(op, [a, b], self.cell.units)

    def _lstm(self, i2h: Node, h2h: Node, cell: Node) -> list[Node]:
        width = GATES["lstm"] * self.cell.units
        gates = self._gates(self._op("elemwise_add", [i2h, h2h], width))
        enter, forget, out = (self._activation(gates[n], "sigmoid") for n in (0, 1, 3))
        new = self._activation(gates[2], "tanh")
        kept = self._pair("elemwise_mul", forget, cell)
        after = self._pair("elemwise_add", kept, self._pair("elemwise_mul", enter, new))
        hidden = self._pair("elemwise_mul", out, self._activation(after.out(), "tanh"))
        return [hidden, after]

    def _gru(self, i2h: Node, h2h: Node, state: Node) -> Node:
        x_reset, x_update, x_new = self._gates(i2h)
        h_reset, h_update, h_new = self._gates(h2h)
        reset = self._activation(self._pair("elemwise_add", x_reset, h_reset).out(), "sigmoid")
        update = self._activation(self._pair("elemwise_add", x_update, h_update).out(), "sigmoid")
        seen = self._pair("elemwise_mul", reset, h_new)
        new = self._activation(self._pair("elemwise_add", x_new, seen).out(), "tanh")
        rest = self._op("_rminus_scalar", [update], self.cell.units, scalar=1.0)
        fresh = self._pair("elemwise_mul", rest, new)
        return self._pair("elemwise_add", fresh, self._pair("elemwise_mul", update, state))
