"""A layer as MXNet's RNN operator: what a recurrence made of one is put back as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Value
from graphopt.ir.types import TensorType
from graphopt.passes.recurrence.body import Body
from graphopt.passes.recurrence.build import Chain
from graphopt.passes.recurrence.cells import Cell


@dataclass(frozen=True)
class Layer:
    """One layer of an RNN operator.

    Attributes:
        cell: of each direction.
        chain: what it runs over.
        directions: 1 or 2.
        dtype: of everything but lengths.
        attrs: of the operator it stems from.
        lengths: the type of the lengths, or ``None`` without.
        zero_states: whether the states are zeros at first.
    """

    cell: Cell
    chain: Chain
    directions: int
    dtype: str
    attrs: Attrs
    lengths: TensorType | None
    zero_states: bool


def layer_graph(layer: Layer, body: Body) -> Graph:
    """The operator with the inputs and outputs of the recurrence made of ``body``."""
    return _Maker(layer, body).make()


class _Maker:
    def __init__(self, layer: Layer, body: Body) -> None:
        self.layer, self.cell, self.body = layer, layer.cell, body
        self.graph = Graph("layer")

    def make(self) -> Graph:
        layer, cell, chain = self.layer, self.cell, self.layer.chain
        x = self._input("x", (chain.steps, chain.batch, cell.inputs))
        given = [] if layer.zero_states else [self._states(d) for d in range(layer.directions)]
        parameters = self._parameters()
        states = [
            self._joined_states([own[n] for own in given], width)
            for n, width in enumerate(cell.states)
        ]
        reads = [x, parameters, *states]
        if layer.lengths is not None:
            reads.append(self.graph.add_input("lengths", DATA, layer.lengths).out())
        attrs = layer.attrs.set(num_layers=1, p=0.0, state_outputs=True)
        count = layer.directions
        types = [TensorType(layer.dtype, chain.shape(count * cell.states[0]))]
        types += [TensorType(layer.dtype, (count, chain.batch, width)) for width in cell.states]
        rnn = self.graph.add("RNN", reads, attrs, types, "rnn")
        finals = [
            self._final(rnn.out(1 + n), direction, width)
            for direction in range(count)
            for n, width in enumerate(cell.states)
        ]
        self.graph.set_outputs([rnn.out(), *finals])
        return self.graph

    def _states(self, direction: int) -> list[Value]:
        return [
            self._input(f"state{direction}_{n}", (self.layer.chain.batch, width))
            for n, width in enumerate(self.cell.states)
        ]

    def _input(self, name: str, shape: Sequence[int]) -> Value:
        type_ = TensorType(self.layer.dtype, tuple(shape))
        return self.graph.add_input(name, DATA, type_).out()

    def _op(
        self, op: str, reads: Sequence[Value], extents: Sequence[int], **attrs: object
    ) -> Value:
        name = self.graph.unique_name(op.lower())
        type_ = TensorType(self.layer.dtype, tuple(extents))
        return self.graph.add(op, reads, attrs, [type_], name).out()

    def _parameters(self) -> Value:
        """The vector of all parameters, as the operator reads it."""
        names = list(self.cell.parameters)
        first = 1 + len(self.cell.states)
        found: list[dict[str, Value]] = [{} for _ in range(self.layer.directions)]
        for own in found:
            for n in self.body.matrices:
                shape = self.cell.parameters[names[n - first]]
                value = self._input(f"m{len(self.graph)}", shape)
                flat = self._op("Reshape", [value], [shape[0] * shape[1]], shape=(-1,))
                own[names[n - first]] = flat
        for own in found:
            for group in self.body.vectors:
                shape = self.cell.parameters[names[group[0] - first]]
                value = self._input(f"v{len(self.graph)}", shape)
                own[names[group[0] - first]] = value
                for n in group[1:]:  # the sum is in the first one's place
                    own[names[n - first]] = self._op("zeros_like", [value], shape)
        parts = [
            own[name]
            for kind in ("weight", "bias")
            for own in found
            for name in names
            if name.endswith(kind)
        ]
        size = sum((self.graph.type_of(part).size or 0) for part in parts)
        return self._op("_rnn_param_concat", parts, [size], dim=0, num_args=len(parts))

    def _joined_states(self, states: Sequence[Value], width: int) -> Value:
        count, batch = self.layer.directions, self.layer.chain.batch
        if not states:
            shape = (count, batch, width)
            return self.graph.add(
                "_zeros",
                [],
                {"shape": shape, "dtype": self.layer.dtype},
                [TensorType(self.layer.dtype, shape)],
                self.graph.unique_name("zeros"),
            ).out()
        return self._op("stack", states, (count, batch, width), axis=0, num_args=count)

    def _final(self, states: Value, direction: int, width: int) -> Value:
        batch = self.layer.chain.batch
        own = self._op(
            "slice_axis", [states], (1, batch, width), axis=0, begin=direction, end=direction + 1
        )
        return self._op("Reshape", [own], (batch, width), shape=(-3, -2))
