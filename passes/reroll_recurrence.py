"""Unrolled recurrences rolled up again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.rows import ROWS
from graphopt.passes.recurrence import sequences
from graphopt.passes.recurrence.anchors import anchor_classes, apart
from graphopt.passes.recurrence.body import translate
from graphopt.passes.recurrence.build import Chain as Over
from graphopt.passes.recurrence.build import Operands, add_recurrence
from graphopt.passes.recurrence.chains import Chain, find_chain
from graphopt.passes.recurrence.dropout import draw_outside
from graphopt.passes.recurrence.feeds import Feeds
from graphopt.passes.recurrence.needs import SUMS
from graphopt.passes.recurrence.paths import path_anchors
from graphopt.passes.recurrence.readers import with_readers
from graphopt.passes.recurrence.templates import BEFORE, CORE, Source
from graphopt.passes.recurrence.worth import fit_one_kernel
from graphopt.pipeline.base import Pass, PassContext
from graphopt.rewrite.substitute import transplant

_PRODUCTS = frozenset({"FullyConnected", "dot"})
_ADDITIONS = SUMS | {"elemwise_sub", "broadcast_sub"}
_CUTS = frozenset({"SliceChannel", "slice_axis", "Concat"})
#: Nodes looked through for paths that turn out to be no recurrence: about a second.
_MOST_IN_VAIN: Final = 200_000
_Members = tuple[NodeId, ...]


@dataclass(frozen=True)
class RerollRecurrence(Pass):
    """Equal steps of an unrolled cell become one recurrence.

    Found by structure, not by name: nodes that apply one operator to the same weight, each
    depending on the one before, count the steps; a step is compared with the next node by node.
    Where no state meets a weight, as in SRU, QRNN and moving averages, equal operators on the way
    of a state count them. LSTM, GRU and plain cells, stacks of them, both directions, and cells
    that no library knows are all the same here. What a step reads may be slices of one array or
    anything else; what it hands out may be read step by step, joined again, or only at the end.
    First and last steps that differ stay unrolled, and so does a chain whose steps kernels cannot
    compute.

    Args:
        min_steps: chains of fewer steps stay.
        leave_to_fusion: chains without weights on their states stay where one kernel computes all
            of their steps, and bare sums of columns or of arrays that lie apart.

    Example::

        // before, and so on for every step
        %x = SliceChannel(%data) {axis=0, num_outputs=40, squeeze_axis=True}
        %a1 = FullyConnected(%x, %w) %b1 = FullyConnected(%h0, %u) %s1 = elemwise_add(%a1, %b1)
        %h1 = tanh(%s1)
        %a2 = FullyConnected(%x#1, %w) %b2 = FullyConnected(%h1, %u) %s2 = elemwise_add(%a2, %b2)
        %h2 = tanh(%s2)
        %y = stack(%h1, %h2)
        // after
        %y = graphopt_recurrence(%data, %h0, %w, %u) {spec="recurrence f32 (57) (128)
          (128x57, 128x128) () ;; 128 = x0 @ m0' + s0 @ m1' ;; 128 = t0 -> f32[a,b] (f32[a,b])
          { %1 = tanh %0; return %1:f32[a,b] } ;; next t1 ;; emit t1"}
    """

    name: ClassVar[str] = "reroll-recurrence"

    min_steps: int = 4
    leave_to_fusion: bool = True

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Roll up chain after chain; near-linear for each."""
        why = self._refusal(cx)
        edited = graph.copy()
        refused: dict[str, Node] = {}
        seen: set[_Members] = set()
        failed: set[_Members] = set()
        vain: list[int] = []
        done = 0
        while True:
            for members, roll in self._attempts(edited, seen, vain, why):
                seen.add(members)
                first = edited[members[0]]
                try:
                    message = roll()
                except GraphoptError as error:
                    failed.add(members)
                    refused.setdefault(str(error), first)
                    continue
                if message:
                    cx.passed(message, first)
                    cx.count("recurrences")
                    done += 1
                    # What is one node now may have been in the way of other chains; and it may
                    # not have been the chain of these anchors.
                    seen -= {*failed, members}
                    failed.clear()
                    refused.clear()
                    break
            else:
                break
        for reason, node in refused.items():
            cx.missed(f"a chain of steps stays unrolled: {reason}", node)
        if sum(vain) >= _MOST_IN_VAIN:
            cx.missed("paths of operators that repeat are too many to look at all of them")
        return edited if done else graph

    def _attempts(
        self, graph: Graph, seen: Collection[_Members], vain: list[int], why: str | None
    ) -> Iterator[tuple[_Members, Callable[[], str]]]:
        """Anchors not seen yet, and how to roll up what they belong to.

        Weights tell the steps of most cells; paths are looked at when they tell nothing more, the
        longest first. Each takes time linear in the graph, so there is an end to those in vain.
        """
        fresh = [found for found in map(tuple, anchor_classes(graph)) if found not in seen]
        for members in fresh:
            yield members, partial(self._roll_one, graph, members, fresh, why)
        for members in map(tuple, path_anchors(graph)):
            if members not in seen and sum(vain) < _MOST_IN_VAIN:
                yield members, partial(self._roll_path, graph, members, why)
                vain.append(len(graph))

    def _roll_one(
        self,
        graph: Graph,
        members: tuple[NodeId, ...],
        others: Sequence[tuple[NodeId, ...]],
        why: str | None,
    ) -> str:
        """Roll up one of the chains that have these anchors; says what was done, if anything.

        Raises:
            GraphoptError: there is one, and it has to stay; ``why`` is why all of them do.
        """
        problem: GraphoptError | None = None
        for anchors in apart(graph, members):
            try:
                chain = find_chain(graph, anchors)
                if chain is None or len(chain.steps) < self.min_steps:
                    continue
                if why is not None:
                    raise GraphoptError(why)
                anchors, chain = self._innermost(graph, anchors, chain, others)
                return self._rolled(graph, anchors, chain)
            except GraphoptError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return ""

    def _roll_path(self, graph: Graph, anchors: _Members, why: str | None) -> str:
        """Roll up the chain of a path, if it is one; else nothing is said, as paths are many.

        Raises:
            GraphoptError: it is one and has to stay; ``why`` is why all of them do.
        """
        # The first steps may have another role than the others.
        for members in (anchors[start:] for start in range(3)):
            chain = self._steps_of(graph, members)
            if chain is not None:
                return self._roll_steps(graph, members, chain, why)
        return ""

    def _steps_of(self, graph: Graph, anchors: _Members) -> Chain | None:
        """The chain of a path, if it is one whose steps read the same of other data.

        Else it is a sum of branches with weights of their own, or an iteration.
        """
        if len(anchors) < self.min_steps:
            return None
        try:
            chain = find_chain(graph, anchors)
        except GraphoptError:
            return None
        if chain is None or len(chain.steps) < self.min_steps:
            return None
        varies = any(len(set(slot)) > 1 for slot in chain.slots)
        return chain if varies and Feeds(graph).are_alike(chain.slots) else None

    def _roll_steps(self, graph: Graph, anchors: _Members, chain: Chain, why: str | None) -> str:
        if why is not None:
            raise GraphoptError(why)
        if self.leave_to_fusion:
            left = _Roller(graph, with_readers(graph, chain)).why_left()
            if left is not None:
                raise GraphoptError(left)
        try:
            return self._rolled(graph, anchors, chain, with_outputs=True)
        except GraphoptError:  # perhaps because of what is computed besides the states
            return self._rolled(graph, anchors, chain)

    def _rolled(
        self, graph: Graph, anchors: Sequence[NodeId], chain: Chain, *, with_outputs: bool = False
    ) -> str:
        """Roll up a chain; ``with_outputs`` takes what steps compute besides their states."""
        with graph.edit():
            if draw_outside(graph, chain):
                drawn = find_chain(graph, anchors)
                assert drawn is not None
                chain = drawn
            return _Roller(graph, with_readers(graph, chain) if with_outputs else chain).roll()

    def _innermost(
        self,
        graph: Graph,
        anchors: Sequence[NodeId],
        chain: Chain,
        others: Sequence[tuple[NodeId, ...]],
    ) -> tuple[Sequence[NodeId], Chain]:
        """The smallest chain that is within the steps of this one.

        A decoder makes steps of all its layers together out of steps of each: rolled up by
        themselves, layers have their projections in front of the loop.
        """
        step = set(chain.steps[0])
        within = (members for members in others if step.intersection(members))
        for inner in (inner for members in within for inner in apart(graph, members)):
            if list(inner) == list(anchors):
                continue
            try:
                found = find_chain(graph, inner)
            except GraphoptError:
                continue
            is_long = found is not None and len(found.steps) >= self.min_steps
            if found is not None and is_long and len(found.sources) < len(chain.sources):
                anchors, chain = inner, found
        return anchors, chain

    def _refusal(self, cx: PassContext) -> str | None:
        if cx.settings.precise:
            return "sums would be rounded in another order"
        return None if cx.target is None else cx.target.why_no_kernels(cx.settings.device)


class _Roller:
    """Makes one recurrence of a chain."""

    def __init__(self, graph: Graph, chain: Chain) -> None:
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
        if fit_one_kernel(self.graph, self.rolled):
            return "one kernel computes all of them, which is faster"
        if self._is_bare_sum():
            return "they do nothing but add up, for which a loop takes longer"
        return None

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
        """Replace the chain; returns what was done."""
        if self.rolled & held_nodes(self.graph):
            raise GraphoptError("other nodes are ordered around its steps")
        self._extend()
        varying = [n for n in self._open_slots() if len(set(self.slots[n])) > 1]
        constant = [n for n in self._open_slots() if n not in varying]
        if not varying:
            raise GraphoptError("its steps read nothing but states")
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
        first = self.chain.template[0]
        node = add_recurrence(
            self.graph,
            body,
            translated,
            over,
            inputs,
            [Operands(initial, parameters)],
            name=self.graph.unique_name(f"{first.name or 'steps'}_rolled"),
            origin=[self.graph[n].name for n in self.chain.steps[0] if self.graph[n].name],
        )
        size = len(self.rows)
        self._hand_out(node, over, emitted)
        return f"{self.count} steps of {size} operators became a recurrence"

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
        if first.is_input or not (op in _PRODUCTS or op in POINTWISE or op in ROWS or op in _CUTS):
            return False
        if op in _CUTS and sequences.cut_of(self.graph, values[0]) is not None:
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

    def _hand_out(self, node: Node, over: Over, emitted: Sequence[tuple[int, int]]) -> None:
        """Give readers of single steps their values, and erase the steps."""
        axis = 1 if over.batch_major else 0
        for n, (row, output) in enumerate(emitted):
            parts = [Value(step, output) for step in self.rows[row]]
            if over.reverse:
                parts.reverse()  # as they lie in the sequence
            sequences.rejoin(self.graph, parts, node.out(n), axis)
            read = [part for part in parts if self._is_read_outside(part)]
            if not read:
                continue
            shape = sequences.extents(self.graph, parts[0])
            name = f"{node.name}_steps"
            attrs = {"num_outputs": self.count, "axis": axis, "squeeze_axis": True}
            cut = sequences.add(
                self.graph, "SliceChannel", [node.out(n)], shape, name, self.count, **attrs
            )
            for at, part in enumerate(parts):
                if part in read:
                    self._replace_outside(part, cut.out(at))
        for n, (row, output) in enumerate(self.chain.states):
            last = Value(self.rows[row][-1], output)
            self._replace_outside(last, node.out(len(emitted) + n))
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
