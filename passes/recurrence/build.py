"""Recurrence nodes made of a body and the values around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE, Node, Value
from graphopt.ir.types import TensorType
from graphopt.passes.recurrence.body import Body


@dataclass(frozen=True)
class Chain:
    """Over what a body is applied: sequences of steps, each row by row.

    Attributes:
        steps: their number.
        batch: number of sequences.
        reverse: from the last step to the first.
        batch_major: sequences are (batch, steps, columns), not (steps, batch, columns).
        lengths: the number of steps of each sequence, (batch,), or ``None``.
        zero_states: the states are zeros at first.
    """

    steps: int
    batch: int
    reverse: bool = False
    batch_major: bool = False
    lengths: Value | None = None
    zero_states: bool = False

    def shape(self, width: int) -> tuple[int, int, int]:
        """Of a sequence."""
        if self.batch_major:
            return (self.batch, self.steps, width)
        return (self.steps, self.batch, width)


def add_recurrence(
    graph: Graph,
    step: Graph,
    body: Body,
    chain: Chain,
    inputs: Sequence[Value],
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
        inputs: a value for every input of ``step``.
        name: of the node.
        origin: names of the nodes it stands for.
        whole: all steps in MXNet's operators: its inputs are those of the node.

    Returns:
        The node. Its outputs are the emitted sequences, then the final states.
    """
    spec = body.spec
    given = len(spec.sequences) + (0 if chain.zero_states else len(spec.states))
    reads = [*inputs[:given], *(inputs[n] for n in body.matrices)]
    for number, group in enumerate(body.vectors):
        total = inputs[group[0]]
        for n in group[1:]:
            type_ = graph.type_of(total)
            total = graph.add(
                "elemwise_add", [total, inputs[n]], {}, [type_], graph.unique_name(f"{name}_bias{number}")
            ).out()
        reads.append(total)
    if chain.lengths is not None:
        reads.append(chain.lengths)
    types = [TensorType(spec.dtype, chain.shape(ref.width)) for ref in spec.emit]
    types += [TensorType(spec.dtype, (chain.batch, width)) for width in spec.states]
    attrs = {
        "spec": str(spec),
        "reverse": chain.reverse,
        "lengths": chain.lengths is not None,
        "batch_major": chain.batch_major,
        "zero_states": chain.zero_states,
    }
    graphs = [step] if whole is None else [step, whole]
    return graph.add(RECURRENCE, reads, attrs, types, name, graphs=graphs, origin=origin)
