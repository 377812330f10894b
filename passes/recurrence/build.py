"""Recurrence nodes made of a body and the values around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE, Node, Value
from graphopt.ir.types import TensorType
from graphopt.passes.recurrence.body import Body
from graphopt.rewrite.substitute import transplant

#: Operators that make arrays of zeros.
ZEROS = frozenset({"_zeros", "zeros_like"})


@dataclass(frozen=True)
class Chain:
    """Over what a body is applied: sequences of steps, each row by row.

    Attributes:
        steps: their number.
        batch: number of sequences.
        reverse: from the last step to the first.
        batch_major: sequences are (batch, steps, columns), not (steps, batch, columns).
        lengths: the number of steps of each sequence, (batch,), or ``None``.
    """

    steps: int
    batch: int
    reverse: bool = False
    batch_major: bool = False
    lengths: Value | None = None

    def shape(self, width: int) -> tuple[int, int, int]:
        """Of a sequence."""
        if self.batch_major:
            return (self.batch, self.steps, width)
        return (self.steps, self.batch, width)


@dataclass(frozen=True)
class Operands:
    """What one direction of a recurrence reads besides the sequences.

    Attributes:
        states: at first.
        parameters: values for the inputs of the step's graph behind its states, by their places.
    """

    states: Sequence[Value]
    parameters: Mapping[int, Value]


def add_recurrence(
    graph: Graph,
    step: Graph,
    body: Body,
    chain: Chain,
    sequences: Sequence[Value],
    directions: Sequence[Operands],
    *,
    name: str,
    origin: Sequence[str] = (),
    whole: Graph | None = None,
) -> Node:
    """Add a recurrence, and in front of it the sums of vectors it reads.

    Args:
        graph: to add to.
        step: the body in MXNet's operators.
        body: its translation.
        chain: what it is applied to.
        sequences: what it reads row by row.
        directions: one, or for a bidirectional recurrence two.
        name: of the node.
        origin: names of the nodes it stands for.
        whole: all steps in MXNet's operators, with the node's inputs and outputs; without it the
            step is unrolled where MXNet's operators are wanted.

    Returns:
        The node. Its outputs are the emitted sequences, then the final states.
    """
    spec = body.spec
    states = [state for one in directions for state in one.states]
    # Zeros need no array.
    zero_states = all(graph[state.node].op in ZEROS for state in states)
    reads = [*sequences, *([] if zero_states else states)]
    reads += [one.parameters[n] for one in directions for n in body.matrices]
    reads += [
        _sum(graph, [one.parameters[n] for n in group], f"{name}_bias")
        for one in directions
        for group in body.vectors
    ]
    if chain.lengths is not None:
        reads.append(chain.lengths)
    count = len(directions)
    types = [TensorType(spec.dtype, chain.shape(count * ref.width)) for ref in spec.emit]
    types += [TensorType(spec.dtype, (chain.batch, width)) for width in count * spec.states]
    attrs = {
        "spec": str(spec),
        "reverse": chain.reverse,
        "lengths": chain.lengths is not None,
        "batch_major": chain.batch_major,
        "bidirectional": count == 2,
        "zero_states": zero_states,
    }
    kept = {key: value for key, value in attrs.items() if value is not False}
    graphs = [aligned(step, body), *([] if whole is None else [whole])]
    return graph.add(RECURRENCE, reads, kept, types, name, graphs=graphs, origin=origin)


def aligned(step: Graph, body: Body) -> Graph:
    """The step with the inputs the node has: sequences, states, matrices, vectors."""
    spec = body.spec
    made = Graph(step.name)
    first = len(spec.sequences) + len(spec.states)
    new: dict[Value, Value] = {}

    def enter(number: int) -> Value:
        node = step.inputs[number]
        value = made.add_input(node.name, node.op, node.type).out()
        new[node.out()] = value
        return value

    for number in (*range(first), *body.matrices):
        enter(number)
    sums = [(enter(group[0]), group[1:]) for group in body.vectors]
    for total, others in sums:
        for number in others:
            # The sum is in the first one's place.
            zero = made.add("zeros_like", [total], {}, [made.type_of(total)], f"no_{number}")
            new[step.inputs[number].out()] = zero.out()
    for node in step:
        if not node.is_input:
            transplant(made, node, new)
    made.set_outputs(new[value] for value in step.outputs)
    return made


def _sum(graph: Graph, values: Sequence[Value], name: str) -> Value:
    values = [_flat(graph, value, name) for value in values]
    if len(values) == 1:
        return values[0]
    # Not elemwise_add: with grad_req="add" for both, MXNet adds the second gradient twice.
    attrs = {"num_args": len(values)}
    types = [graph.type_of(values[0])]
    return graph.add("add_n", values, attrs, types, graph.unique_name(name)).out()


def _flat(graph: Graph, value: Value, name: str) -> Value:
    """A vector; rows (1, columns) are reshaped."""
    type_ = graph.type_of(value)
    if type_.rank == 1:
        return value
    flat = TensorType(type_.dtype, (type_.size,))
    attrs = {"shape": (-1,)}
    return graph.add("Reshape", [value], attrs, [flat], graph.unique_name(f"{name}_row")).out()
