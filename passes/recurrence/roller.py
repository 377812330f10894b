"""A chain of steps made one recurrence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.rows import ROWS
from graphopt.passes.recurrence import sequences
from graphopt.passes.recurrence.body import translate
from graphopt.passes.recurrence.build import Chain as Over
from graphopt.passes.recurrence.build import Operands, add_recurrence
from graphopt.passes.recurrence.chains import Chain
from graphopt.passes.recurrence.needs import SUMS
from graphopt.passes.recurrence.templates import BEFORE, CORE, Source
from graphopt.passes.recurrence.worth import why_left
from graphopt.rewrite.substitute import transplant

_PRODUCTS = frozenset({"FullyConnected", "dot"})
_ADDITIONS = SUMS | {"elemwise_sub", "broadcast_sub"}


class Roller:
    """Makes one recurrence of a chain.

    Attributes:
        takes: operators in front of the core that move elements and are taken into the step.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"SliceChannel", "slice_axis", "Concat"})

    def __init__(self, graph: Graph, chain: Chain) -> None:
        """Nothing is changed yet."""
        self.graph, self.chain = graph, chain
        self.count = len(chain.steps)
        #: For each node of the step, its counterparts, and where its inputs come from. Those in
        #: front of the core, which depend on no state, come first.
        self.rows: list[list[NodeId]] = [
            [step[at] for step in chain.steps] for at in range(len(chain.sources))
        ]
        self.sources: list[list[Source]] = [list(s) for s in chain.sources]
        self.slots = [list(values) for values in chain.slots]
        #: Slots that a node of the step computes: row and output.
        self.computed: dict[int, tuple[int, int]] = {}
        self.rolled: set[NodeId] = {node for row in self.rows for node in row}

    def why_left(self) -> str | None:
        """Why the chain is better left to fusion, if it is, with what it takes into its steps."""
        self._extend()
        if self._is_bare_sum():
            return "they do nothing but add up, for which a loop takes longer"
        states = [math.prod(sequences.extents(self.graph, first)) for first in self.chain.initial]
        emitted = [[Value(node, n) for node in self.rows[row]] for row, n in self._emitted()]
        return why_left(self.graph, self.rolled, self.count * sum(states), emitted)

    def _is_bare_sum(self) -> bool:
        """Whether steps add one column to a total, as a loss, or what has to be copied for them."""
        node = self.chain.template[0]
        if len(self.chain.sources) > 1 or canonical(node.op) not in _ADDITIONS:
            return False
        if sequences.extents(self.graph, node.out())[1:] == (1,) and not self._emitted():
            return True
        return len(self.rows) == 1 and any(
            len(set(slot)) > 1 and sequences.as_sequence(self.graph, slot) is None
            for slot in self.slots
        )

    def roll(self) -> str:
        """Replace the chain; returns what was done.

        Raises:
            GraphoptError: kernels cannot compute its steps; the message says why.
        """
        varying, constant = self._prepared()
        rows = [n for n in constant if self._is_row(n)]
        learned = [n for n in constant if n not in rows]
        emitted = self._emitted()
        body = self._body(varying, rows, learned, emitted)
        states = len(self.chain.states) + len(rows)
        translated = translate(body, len(varying), states)
        over, inputs = self._sequences(varying)
        first_parameter = len(varying) + states
        parameters = {n: self.slots[slot][0] for n, slot in enumerate(learned, first_parameter)}
        initial = [*self.chain.initial, *(self.slots[n][0] for n in rows)]
        node = add_recurrence(
            self.graph,
            body,
            translated,
            over,
            inputs,
            [Operands(initial, parameters)],
            name=self._name(),
            origin=self._origin(),
        )
        self._hand_out(node.values, over, emitted)
        return self._done()

    def _prepared(self) -> tuple[list[int], list[int]]:
        """Slots that are another value in each step, and those that are the same."""
        if self.rolled & held_nodes(self.graph):
            raise GraphoptError("other nodes are ordered around its steps")
        self._extend()
        varying = [n for n in self._open_slots() if len(set(self.slots[n])) > 1]
        if not varying:
            raise GraphoptError("its steps read nothing but states")
        return varying, [n for n in self._open_slots() if n not in varying]

    def _name(self) -> str:
        return self.graph.unique_name(f"{self.chain.template[0].name or 'steps'}_rolled")

    def _origin(self) -> list[str]:
        return [self.graph[n].name for n in self.chain.steps[0] if self.graph[n].name]

    def _done(self) -> str:
        return f"{self.count} steps of {len(self.rows)} operators became a recurrence"

    # What depends on no state, but is computed in every step

    def _extend(self) -> None:
        """Take what is in front of the core into the step, as long as only the step reads it."""
        pending = list(range(len(self.slots)))
        while pending:
            number = pending.pop()
            values = self.slots[number]
            row = [value.node for value in values]
            if number in self.computed or not self._can_take(values):
                continue
            place = len(self.rows)
            self.rows.append(row)
            self.rolled.update(row)
            node = self.graph[row[0]]
            for other, others in enumerate(self.slots):
                if [value.node for value in others] == row:
                    self.computed[other] = (place, others[0].index)
            reads: list[Source] = []
            for position in range(len(node.inputs)):
                slot = self._slot([self.graph[n].inputs[position] for n in row])
                reads.append((BEFORE, slot, 0))
                pending.append(slot)
            self.sources.append(reads)

    def _slot(self, values: list[Value]) -> int:
        if values in self.slots:
            return self.slots.index(values)
        self.slots.append(values)
        return len(self.slots) - 1

    def _can_take(self, values: Sequence[Value]) -> bool:
        nodes = [self.graph[value.node] for value in values]
        first = nodes[0]
        op = canonical(first.op)
        if len({node.id for node in nodes}) < self.count or len({v.index for v in values}) > 1:
            return False
        if first.is_input or not (
            op in _PRODUCTS or op in POINTWISE or op in ROWS or op in self.takes
        ):
            return False
        if op in self.takes and sequences.cut_of(self.graph, values[0]) is not None:
            return False
        if any(self._type(value).dtype != first.type.dtype for value in first.inputs):
            return False  # a step computes in one dtype; a cast in front of it may stay there
        alike = (first.op, first.attrs, first.types, len(first.inputs))
        return all(
            (node.op, node.attrs, node.types, len(node.inputs)) == alike
            and not node.after
            and not node.graphs
            and all(use.node in self.rolled for use in self.graph.node_users(node.id))
            and not any(self.graph.is_output(value) for value in node.values)
            for node in nodes
        )

    # The step

    def _open_slots(self) -> list[int]:
        return [n for n in range(len(self.slots)) if n not in self.computed]

    def _is_row(self, slot: int) -> bool:
        """Whether a value that all steps share has a row for every sequence of the batch."""
        shape = sequences.extents(self.graph, self.slots[slot][0])
        batch = (
            sequences.extents(self.graph, self.chain.initial[0])[:1] if self.chain.initial else ()
        )
        is_matrix = any(
            canonical(self.graph[row[0]].op) in _PRODUCTS and at == 1
            for row, reads in zip(self.rows, self.sources, strict=True)
            for at, source in enumerate(reads)
            if source[:2] == (BEFORE, slot)
        )
        return not is_matrix and len(shape) == 2 and shape[:1] == batch and shape[0] != 1

    def _body(
        self,
        varying: Sequence[int],
        rows: Sequence[int],
        learned: Sequence[int],
        emitted: Sequence[tuple[int, int]],
    ) -> Graph:
        body = Graph("step")
        slot_value: dict[int, Value] = {}
        for at, n in enumerate(varying):
            slot_value[n] = body.add_input(f"x{at}", DATA, self._type(self.slots[n][0])).out()
        own = [
            body.add_input(f"state{n}", DATA, self._type(value)).out()
            for n, value in enumerate(self.chain.initial)
        ]
        for at, n in enumerate(rows):
            slot_value[n] = body.add_input(f"row{at}", DATA, self._type(self.slots[n][0])).out()
        for at, n in enumerate(learned):
            slot_value[n] = body.add_input(f"p{at}", PARAM, self._type(self.slots[n][0])).out()
        copied: dict[int, dict[int, Value]] = {}
        for at in self._order():
            node = self.graph[self.rows[at][0]]
            new: dict[Value, Value] = {}
            for value, (kind, number, output) in zip(node.inputs, self.sources[at], strict=True):
                if kind == CORE:
                    new[value] = copied[number][output]
                elif kind == BEFORE and number in self.computed:
                    row, index = self.computed[number]
                    new[value] = copied[row][index]
                else:
                    new[value] = slot_value[number] if kind == BEFORE else own[number]
            transplant(body, node, new)
            copied[at] = {n: new[node.out(n)] for n in range(len(node.types))}
        nexts = [copied[row][output] for row, output in self.chain.states]
        nexts += [slot_value[n] for n in rows]
        body.set_outputs([*nexts, *(copied[row][output] for row, output in emitted)])
        return body

    def _order(self) -> list[int]:
        """The core in its order, behind what was put in front of it."""
        core = len(self.chain.sources)
        return [*range(len(self.rows) - 1, core - 1, -1), *range(core)]

    def _type(self, value: Value) -> TensorType:
        return self.graph.type_of(value)

    # Around the node

    def _sequences(self, varying: Sequence[int]) -> tuple[Over, list[Value]]:
        """What the recurrence runs over, and its sequences, all laid out alike."""
        found = [sequences.as_sequence(self.graph, self.slots[n]) for n in varying]
        lying = [cut for cut in found if cut is not None]
        reverse = bool(lying) and all(cut.reverse for cut in lying)
        axis = 1 if lying and all(cut.axis == 1 for cut in lying) else 0
        values = []
        for n, cut in zip(varying, found, strict=True):
            if cut is None or cut.reverse != reverse:
                values.append(self._stacked(self.slots[n], axis, reverse=reverse))
                continue
            value = self._part(cut)
            if cut.axis != axis:
                value = sequences.swapped(self.graph, value, "steps_swap")
            values.append(value)
        batch = sequences.extents(self.graph, self.slots[varying[0]][0])[0]
        return Over(self.count, batch, reverse, axis == 1), values

    def _part(self, cut: sequences.Sequence3) -> Value:
        """The steps of the chain, if the array has more."""
        shape = list(sequences.extents(self.graph, cut.source))
        if shape[cut.axis] == self.count:
            return cut.source
        begin = cut.first - self.count + 1 if cut.reverse else cut.first
        shape[cut.axis] = self.count
        name = f"{self.graph[cut.source.node].name}_steps"
        return sequences.add(
            self.graph,
            "slice_axis",
            [cut.source],
            shape,
            name,
            axis=cut.axis,
            begin=begin,
            end=begin + self.count,
        ).out()

    def _stacked(self, values: Sequence[Value], axis: int, *, reverse: bool) -> Value:
        ordered = list(values)[::-1] if reverse else list(values)
        shape = list(sequences.extents(self.graph, values[0]))
        shape.insert(axis, self.count)
        name = f"{self.graph[values[0].node].name or 'x'}_stack"
        return sequences.add(
            self.graph, "stack", ordered, shape, name, axis=axis, num_args=len(ordered)
        ).out()

    def _emitted(self) -> list[tuple[int, int]]:
        """Core values that are read outside of the steps, but not only as final states."""
        found = []
        states = set(self.chain.states)
        for at in range(len(self.chain.sources)):
            for output in range(len(self.graph[self.rows[at][0]].types)):
                read = [
                    step
                    for step, node in enumerate(self.rows[at])
                    if self._is_read_outside(Value(node, output))
                ]
                if read and not ((at, output) in states and read == [self.count - 1]):
                    found.append((at, output))
        return found

    def _is_read_outside(self, value: Value) -> bool:
        return self.graph.is_output(value) or any(
            use.node not in self.rolled for use in self.graph.users(value)
        )

    def _hand_out(
        self, leaving: Sequence[Value], over: Over, emitted: Sequence[tuple[int, int]]
    ) -> None:
        """Give readers of single steps their values, and erase the steps.

        Args:
            leaving: values of all steps for those emitted, then the last of each state.
            over: how steps lie in them.
            emitted: core values.
        """
        axis = 1 if over.batch_major else 0
        emissions, finals = leaving[: len(emitted)], leaving[len(emitted) :]
        for whole, (row, output) in zip(emissions, emitted, strict=True):
            label = self.graph[whole.node].name
            parts = [Value(step, output) for step in self.rows[row]]
            if over.reverse:
                parts.reverse()  # as they lie in the sequence
            sequences.rejoin(self.graph, parts, whole, axis)
            read = [part for part in parts if self._is_read_outside(part)]
            if not read:
                continue
            if len(read) == 1:
                at = parts.index(read[0])
                step = sequences.step_of(self.graph, whole, axis, at, f"{label}_step")
                self._replace_outside(read[0], step)
                continue
            shape = sequences.extents(self.graph, parts[0])
            name = f"{label}_steps"
            attrs = {"num_outputs": self.count, "axis": axis, "squeeze_axis": True}
            cut = sequences.add(
                self.graph, "SliceChannel", [whole], shape, name, self.count, **attrs
            )
            for at, part in enumerate(parts):
                if part in read:
                    self._replace_outside(part, cut.out(at))
        for final, (row, output) in zip(finals, self.chain.states, strict=False):
            last = Value(self.rows[row][-1], output)
            self._replace_outside(last, final)
        self._erase()

    def _replace_outside(self, old: Value, new: Value) -> None:
        if self._is_read_outside(old):
            self.graph.replace_uses(old, new)

    def _erase(self) -> None:
        # From the last step to the first, so that nobody reads what goes.
        core = len(self.chain.sources)
        order: Iterable[int] = [*range(core, len(self.rows)), *range(core - 1, -1, -1)]
        later = [self.rows[at][step] for step in range(self.count - 1, -1, -1) for at in order]
        sequences.erase_unused(self.graph, later[::-1])
