"""The step of a recurrence that is made of a loop's body."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphopt.analysis.needed import needed_for
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Value
from graphopt.passes.recurrence.columns import MAX_PARTS, Numbers, segments
from graphopt.passes.recurrence.flatten import flatten
from graphopt.passes.recurrence.numbered import Numbered
from graphopt.rewrite.substitute import transplant


@dataclass(frozen=True)
class LoopStep:
    """A step, and what of the body its inputs and outputs are.

    Attributes:
        graph: reads rows of ``data``, the parts of states, ``rows`` as states that stay, and
            ``learned``; returns the next states and what it emits.
        data: inputs of the body, those that it needs.
        widths: of the parts of each state.
        rows: captured inputs with a row for each sequence.
        learned: other captured inputs.
        emitted: of each value that the body emits, for each of its parts how often that stands side
            by side, as a column that is repeated is emitted once.
    """

    graph: Graph
    data: tuple[Value, ...]
    widths: tuple[tuple[int, ...], ...]
    rows: tuple[Value, ...]
    learned: tuple[Value, ...]
    emitted: tuple[tuple[int, ...], ...]


def make_step(
    body: Graph,
    data: Sequence[Value],
    states: Sequence[Value],
    batch: int,
    *,
    batched: bool,
) -> LoopStep:
    """Make a step of a body.

    A state whose next value is put together has the parts of that, as long as that gives it more.

    Args:
        body: with types; returns what it emits, then the next states.
        data: inputs that are another in each step.
        states: inputs that are what the step before returned.
        batch: the number of sequences.
        batched: whether values have them along their first axis.

    Raises:
        GraphoptError: it is no computation on rows of few parts.
    """
    maker = _Maker(body, data, states)
    while True:
        values = maker.flattened(batch, batched=batched)
        if not maker.cut(values):
            return maker.made(values)


class _Maker:
    def __init__(self, body: Graph, data: Sequence[Value], states: Sequence[Value]) -> None:
        self.body, self.states = body, states
        needed = needed_for(body, body.outputs)
        # One has to tell the number of steps.
        self.data = [value for value in data if value.node in needed] or data[:1]
        count = len(body.outputs) - len(states)
        self.emits, self.next = body.outputs[:count], body.outputs[count:]
        #: Of each state, where its parts end.
        self.ends: list[set[int]] = [set() for _ in states]

    def flattened(self, batch: int, *, batched: bool) -> Numbered:
        """The body on matrices, with states in the parts that they have so far."""
        values = Numbered(self.body, batch, batched=batched)
        self.fed = [values.feed(value, [_size(values, value)]) for value in self.data]
        for ends, value in zip(self.ends, self.states, strict=True):
            ends.add(_size(values, value))
        self.parts = [
            values.feed(value, widths)
            for value, widths in zip(self.states, self.widths, strict=True)
        ]
        flatten(values)
        return values

    @property
    def widths(self) -> list[list[int]]:
        """Of the parts of each state."""
        return [[end - begin for begin, end in pairwise([0, *sorted(e)])] for e in self.ends]

    def cut(self, values: Numbered) -> bool:
        """Give states the parts of what is next; returns whether one has more than before."""
        before = sum(map(len, self.ends))
        for ends, state, value in zip(self.ends, self.states, self.next, strict=True):
            if values.shape(state) != values.shape(value):
                raise GraphoptError(f"{self.body[state.node].label}: its shape changes")
            numbers = _row(values, value)
            ends |= {cut.stop for cut in segments([numbers], numbers.size)}
        if (count := sum(map(len, self.ends))) == before:
            return False
        if count > max(MAX_PARTS, len(self.ends)):
            raise GraphoptError(f"a state made of several parts: {count}, of {MAX_PARTS} at most")
        return True

    def made(self, values: Numbered) -> LoopStep:
        """The step with inputs and outputs in their order."""
        columns = values.columns
        after = [
            columns.matrix(_row(values, value)[begin:end])
            for value, ends in zip(self.next, self.ends, strict=True)
            for begin, end in pairwise([0, *sorted(ends)])
        ]
        emitted = [columns.few_runs(_row(values, value)) for value in self.emits]
        parts = [columns.once(run) for runs in emitted for run in runs]
        rows = list(values.rows.values())
        outputs = [*after, *rows, *parts]
        read = needed_for(values.step, outputs)
        is_read = [parts[0].node in read for parts in self.fed]
        is_read[0] |= not any(is_read)
        states = [part for parts in self.parts for part in parts]
        fed = [parts[0] for parts, yes in zip(self.fed, is_read, strict=True) if yes]
        learned = {old: new for old, new in values.learned.items() if new.node in read}
        order = [*fed, *states, *rows, *learned.values()]
        return LoopStep(
            _ordered(values.step, order, len(order) - len(learned), outputs, read),
            tuple(value for value, yes in zip(self.data, is_read, strict=True) if yes),
            tuple(map(tuple, self.widths)),
            tuple(values.rows),
            tuple(learned),
            tuple(tuple(run.copies for run in runs) for runs in emitted),
        )


def _size(values: Numbered, value: Value) -> int:
    return math.prod(values.shape(value))


def _row(values: Numbered, value: Value) -> Numbers:
    return values.whole(value).reshape(-1)


def _ordered(
    step: Graph, inputs: Sequence[Value], fed: int, outputs: Sequence[Value], needed: set[int]
) -> Graph:
    """The same step with inputs in an order, of which the first ones are data."""
    made = Graph(step.name)
    new: dict[Value, Value] = {}
    for at, value in enumerate(inputs):
        node = step[value.node]
        new[value] = made.add_input(node.name, DATA if at < fed else PARAM, node.type).out()
    for node in step:
        if node.id in needed and not node.is_input:
            transplant(made, node, new)
    made.set_outputs(new[value] for value in outputs)
    return made
