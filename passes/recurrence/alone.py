"""A recurrence by itself, for some of its steps, to be timed."""

from __future__ import annotations

from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Node
from graphopt.ir.types import TensorType
from graphopt.kernels.recurrence.spec import RecurrenceSpec, parse


class Alone:
    """A recurrence of static types.

    Attributes:
        spec: of its step.
        steps: how many it has.
        batch: how many sequences.
    """

    def __init__(self, graph: Graph, node: Node) -> None:
        """Of a node in a graph; ``steps`` and ``batch`` are those of what its steps write."""
        self.node = node
        self.spec: RecurrenceSpec = parse(str(node.attrs["spec"]))
        self._reads = [graph.type_of(value) for value in node.inputs]
        shape = self._sequence().shape
        assert shape is not None
        self._axis = 1 if node.attrs.flag("batch_major") else 0
        self.steps = 1 if node.attrs.flag("flat") else int(shape[self._axis] or 0)
        self.batch = int(shape[0 if node.attrs.flag("flat") else 1 - self._axis] or 0)

    @property
    def macs(self) -> int:
        """Multiplications of a step with matrices, forward."""
        return self.batch * sum(rows * columns for rows, columns in self.spec.matrices)

    def graph(self, steps: int, *, by_vectors: bool) -> Graph:
        """A graph of nothing else, of so many steps at most and without lengths."""
        graph, spec = Graph("recurrence"), self.spec
        reads = self._reads[: len(self._reads) - self.node.attrs.flag("lengths")]
        is_indexed = self.node.attrs.flag("indexed")
        sequences = set(range(int(is_indexed), len(spec.sequences)))
        if is_indexed:
            sequences.add(len(reads) - 1)
        sources = []
        for n, type_ in enumerate(reads):
            role, given = (DATA, self._of(type_, steps)) if n in sequences else (PARAM, type_)
            sources.append(graph.add_input(f"x{n}", role, given))
        emitted, finals = self.node.types[: len(spec.emit)], self.node.types[len(spec.emit) :]
        types = [*(self._of(type_, steps) for type_ in emitted), *finals]
        attrs = self.node.attrs.without("lengths", "by_vectors")
        if by_vectors:
            attrs = attrs.set(by_vectors=True)
        graph.set_outputs([graph.add(self.node.op, sources, attrs, types, "recurrence").out(0)])
        return graph

    def _sequence(self) -> TensorType:
        """Of what has a row for each step and sequence of the batch."""
        if self.spec.emit:
            return self.node.types[0]
        lengths = int(self.node.attrs.flag("lengths"))
        return self._reads[-1 - lengths if self.node.attrs.flag("indexed") else 0]

    def _of(self, type_: TensorType, steps: int) -> TensorType:
        if self.node.attrs.flag("flat"):
            return type_
        shape = list(type_.shape or ())
        shape[self._axis] = min(steps, self.steps)
        return type_.with_shape(tuple(shape))
