"""Recurrences as MXNet's operators, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.types import TensorType
from graphopt.kernels.recurrence.spec import RecurrenceSpec, parse
from graphopt.rewrite.substitute import transplant


def unroll(graph: Graph, node: Node) -> list[Value]:
    """Add the steps of a recurrence to ``graph``; returns what its outputs are then.

    Args:
        graph: to add to; it has what the node reads.
        node: a recurrence with static types and its step as a nested graph.

    Raises:
        GraphoptError: its sequences have lengths of their own, which no operator of MXNet on the
            CPU can follow, or its step is not there.
    """
    if node.attrs.get("lengths"):
        raise GraphoptError(
            f"node {node.name!r} runs over sequences of different lengths, which MXNet's operators"
            " cannot do: keep the kernels"
        )
    if not node.graphs:
        raise GraphoptError(
            f"node {node.name!r} is a layer of graphopt.nn, for which there is no form in MXNet's"
            " operators: keep the kernels, or use gluon.rnn's layer"
        )
    return _Unroller(graph, node).run()


class _Unroller:
    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.spec: RecurrenceSpec = parse(str(node.attrs["spec"]))
        self.axis = 1 if node.attrs.get("batch_major") else 0
        self.directions = 2 if node.attrs.get("bidirectional") else 1
        self.is_indexed = node.attrs.flag("indexed")
        shape = graph.type_of(node.inputs[-1 if self.is_indexed else 0]).shape or ()
        self.steps, self.batch = int(shape[self.axis] or 0), int(shape[1 - self.axis] or 0)

    def run(self) -> list[Value]:
        spec, inputs = self.spec, list(self.node.inputs)
        if self.is_indexed:
            inputs[0] = self._looked_up(inputs[0], inputs.pop())
        rows = [self._cut(inputs.pop(0), width) for width in spec.sequences]
        n_states = len(spec.states)
        if self.node.attrs.get("zero_states"):
            states = [[self._zeros(width) for width in spec.states]] * self.directions
        else:
            states = [[inputs.pop(0) for _ in range(n_states)] for _ in range(self.directions)]
        matrices = [[inputs.pop(0) for _ in spec.matrices] for _ in range(self.directions)]
        vectors = [[inputs.pop(0) for _ in spec.vectors] for _ in range(self.directions)]
        emitted: list[list[list[Value]]] = []
        finals: list[Value] = []
        for direction in range(self.directions):
            backwards = direction == 1 or bool(self.node.attrs.get("reverse"))
            learned = matrices[direction] + vectors[direction]
            found, last = self._walk(rows, states[direction], learned, backwards=backwards)
            emitted.append(found)
            finals += last
        whole = [
            self._joined([own[k] for own in emitted], ref.width) for k, ref in enumerate(spec.emit)
        ]
        return whole + finals

    def _walk(
        self,
        rows: Sequence[Sequence[Value]],
        states: Sequence[Value],
        learned: Sequence[Value],
        *,
        backwards: bool,
    ) -> tuple[list[list[Value]], list[Value]]:
        """One direction: for each emitted sequence its steps in order of time, and the states."""
        step = self.node.graphs[0]
        order = range(self.steps - 1, -1, -1) if backwards else range(self.steps)
        emitted: list[list[Value]] = [[] for _ in self.spec.emit]
        now = list(states)
        for time in order:
            reads = [*(row[time] for row in rows), *now, *learned]
            new = {inner.out(): value for inner, value in zip(step.inputs, reads, strict=True)}
            for inner in step:
                if not inner.is_input:
                    transplant(self.graph, inner, new)
            outputs = [new[value] for value in step.outputs]
            now = outputs[: len(now)]
            for steps, value in zip(emitted, outputs[len(now) :], strict=True):
                steps.append(value)
        if backwards:
            emitted = [steps[::-1] for steps in emitted]
        return emitted, now

    def _add(
        self,
        op: str,
        reads: Sequence[Value],
        extents: Sequence[int],
        count: int = 1,
        **attrs: object,
    ) -> Node:
        type_ = TensorType(self.spec.dtype, tuple(extents))
        name = self.graph.unique_name(f"{self.node.name}_{op.lower()}")
        return self.graph.add(op, reads, attrs, [type_] * count, name, origin=self.node.origin)

    def _looked_up(self, table: Value, numbers: Value) -> Value:
        rows, width = (extent or 0 for extent in self.graph.type_of(table).shape or ())
        shape = (*(extent or 0 for extent in self.graph.type_of(numbers).shape or ()), width)
        return self._add(
            "Embedding",
            [numbers, table],
            shape,
            input_dim=rows,
            output_dim=width,
            dtype=self.spec.dtype,
        ).out()

    def _cut(self, sequence: Value, width: int) -> list[Value]:
        attrs = {"num_outputs": self.steps, "axis": self.axis, "squeeze_axis": True}
        cut = self._add("SliceChannel", [sequence], (self.batch, width), self.steps, **attrs)
        return list(cut.values)

    def _zeros(self, width: int) -> Value:
        shape = (self.batch, width)
        return self._add("_zeros", [], shape, shape=shape, dtype=self.spec.dtype).out()

    def _joined(self, directions: Sequence[Sequence[Value]], width: int) -> Value:
        shape = [self.batch, self.batch, width]
        shape[self.axis] = self.steps
        parts = [
            self._add("stack", steps, shape, axis=self.axis, num_args=self.steps).out()
            for steps in directions
        ]
        if len(parts) == 1:
            return parts[0]
        shape[2] = len(parts) * width
        return self._add("Concat", parts, shape, dim=2, num_args=len(parts)).out()
