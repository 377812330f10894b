"""A step of a recurrence in MXNet's operators -> RecurrenceSpec.

Values of the step are matrices (batch, columns). Products and kernels alternate: a kernel computes
at once whatever is needed next and has the products behind it. Slices cost nothing, as products and
kernels read columns where they lie; a slice of a pointwise result is the result on slices. Biases
are added by the kernels, and products that are summed become one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.kernels.recurrence.spec import Part, Product, RecurrenceSpec, Ref, Step, Term
from graphopt.passes.recurrence.needs import Needs
from graphopt.passes.recurrence.places import Places
from graphopt.passes.recurrence.step_kernel import StepKernel
from graphopt.passes.recurrence.values import Values


@dataclass(frozen=True)
class Body:
    """A translated step.

    Attributes:
        spec: what it computes.
        matrices: which inputs of the body graph are the spec's matrices.
        vectors: of which each of its vectors is the sum.
    """

    spec: RecurrenceSpec
    matrices: tuple[int, ...]
    vectors: tuple[tuple[int, ...], ...]


def translate(body: Graph, sequences: int, states: int) -> Body:
    """The spec of a body.

    Args:
        body: inputs are rows of sequences, states and parameters, in this order; outputs are the
            next states, then what is emitted. Types are static, with the batch as the first axis.
        sequences: how many of the inputs are rows of sequences.
        states: how many are states.

    Raises:
        GraphoptError: kernels cannot compute it; the message names the node and the reason.
    """
    return _Translator(_without_biases(body), sequences, states).run()


def _without_biases(body: Graph) -> Graph:
    """The same step with biases added by operators of their own."""
    edited = body.copy()
    for node in body:
        if canonical(node.op) == "FullyConnected" and len(node.inputs) == 3:
            reads = (node.out(), edited[node.id].inputs[2])
            add = edited.add("broadcast_add", reads, {}, node.types, f"{node.name}_sum")
            edited.replace_uses(node.out(), add.out())
            edited.update(edited[add.id].but(inputs=reads))
            product = edited[node.id]
            attrs = product.attrs.set(no_bias=True)
            edited.update(product.but(inputs=product.inputs[:2], attrs=attrs))
    return edited


class _Translator:
    def __init__(self, body: Graph, sequences: int, states: int) -> None:
        self.values = Values(body, sequences, states)
        self.needs, self.places = Needs(self.values), Places(self.values)
        self.steps: list[Step] = []
        self.count = 0

    def run(self) -> Body:
        values, places = self.values, self.places
        wanted = [values.resolve(value) for value in values.body.outputs]
        by_rank: dict[int, list[Value]] = defaultdict(list)
        for value in self.needs.targets(wanted):
            by_rank[self.needs.rank(value)].append(value)
        for rank in sorted(by_rank):
            self._step(by_rank[rank])
        refs = [self._leaving(value) for value in wanted]
        widths = [values.width(values.input(n)) for n in range(values.first_parameter)]
        spec = RecurrenceSpec(
            values.dtype,
            tuple(widths[: values.n_sequences]),
            tuple(widths[values.n_sequences :]),
            tuple(values.matrix_shape(node) for node in places.matrix_of),
            tuple(values.body[node].type.size or 1 for node in places.vector_of),
            tuple(self.steps),
            tuple(refs[: values.n_states]),
            tuple(refs[values.n_states :]),
        )
        summed = (self.needs.vector_sums.get(node, [node]) for node in places.vector_of)
        return Body(
            spec,
            tuple(values.inputs[node] for node in places.matrix_of),
            tuple(tuple(values.inputs[node] for node in nodes) for nodes in summed),
        )

    def _step(self, wanted: Sequence[Value]) -> None:
        """Compute values that need nothing of each other: products, and a kernel for each width."""
        by_width: dict[int, list[Value]] = defaultdict(list)
        for value in wanted:
            if value in self.needs.terms:
                self._product(value)
            else:
                by_width[self.needs.space(value)].append(value)
        for width, group in by_width.items():
            self._map(group, width)

    def _product(self, value: Value) -> None:
        terms = []
        for node in self.needs.terms[value]:
            terms += self._terms_of(node)
        if not terms:
            return  # part of another one
        self.steps.append(Product(tuple(terms)))
        self.places.made[value] = Ref("t", self.count, 0, terms[0].width)
        self.count += 1

    def _terms_of(self, node: Node) -> list[Term]:
        matrix = self.values.resolve(node.inputs[1])
        index = self.places.matrix(matrix)
        rows, columns = self.values.matrix_shape(matrix.node)
        if canonical(node.op) == "dot":
            if node.attrs.flag("transpose_a"):
                raise GraphoptError(f"{node.label} sums over the batch")
            transposed = node.attrs.flag("transpose_b")
        else:
            transposed = True
        at, terms = 0, []
        for ref in self.places.columns(self.values.resolve(node.inputs[0]), 0, None):
            part = (
                Part(index, 0, at, rows, ref.width)
                if transposed
                else Part(index, at, 0, ref.width, columns)
            )
            terms.append(Term(ref, part, transposed))
            at += ref.width
        return terms

    def _leaving(self, value: Value) -> Ref:
        refs = self.places.columns(value, 0, None)
        if len(refs) != 1:
            label = self.values.body[value.node].label
            raise GraphoptError(f"{label}: a state made of several parts")
        return refs[0]

    def _map(self, values: Sequence[Value], width: int) -> None:
        kernel = StepKernel(self.values, self.needs, self.places, width)
        values = [v for v in values if not self.places.lies_somewhere(v)]
        if not values:
            return
        step = kernel.build(values)
        self.steps.append(step)
        for n, value in enumerate(values):
            self.places.made[value] = Ref("t", self.count + n, 0, step.widths[n])
        self.count += len(values)
