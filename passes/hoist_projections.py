"""What each step computes without a state, computed for all steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.recurrence.sequences import erase_unused, extents, rejoin
from graphopt.pipeline.base import Pass, PassContext

#: Operators on (batch, columns) that do the same on (steps, batch, columns) with these attributes.
_LAST_AXIS = frozenset({"softmax", "log_softmax"})
#: Pointwise operators that look at more than their operands' elements: shapes, channels.
_BY_SHAPE = frozenset(
    {
        "LeakyReLU",
        "where",
        "broadcast_to",
        "broadcast_axis",
        "broadcast_like",
        "_npi_broadcast_to",
        "_identity_with_attr_like_rhs",
    }
)


@dataclass(frozen=True)
class HoistProjections(Pass):
    """Operators applied to every step of a sequence are applied to the whole sequence.

    An unrolled net computes a projection, an activation or a concatenation once a step, on a slice
    of a sequence. Where no state is involved, one operator on all steps does it: one large matrix
    product for many small ones. The slices then move behind it, and vanish where the steps are
    joined again.

    Args:
        min_steps: sequences of fewer steps stay as they are.

    Example::

        // before
        graph net(%x: f32[4,2,3], param %w: f32[5,3]) {
          %s = SliceChannel(%x) {axis=0, num_outputs=4, squeeze_axis=True}
            : (f32[2,3], f32[2,3], f32[2,3], f32[2,3])
          %a = FullyConnected(%s, %w) {no_bias=True, num_hidden=5} : f32[2,5]
          %b = FullyConnected(%s#1, %w) {no_bias=True, num_hidden=5} : f32[2,5]
          %c = FullyConnected(%s#2, %w) {no_bias=True, num_hidden=5} : f32[2,5]
          %d = FullyConnected(%s#3, %w) {no_bias=True, num_hidden=5} : f32[2,5]
          %y = stack(%a, %b, %c, %d) {axis=0, num_args=4} : f32[4,2,5]
          return %y
        }
        // after
        graph net(%x: f32[4,2,3], param %w: f32[5,3]) {
          %a_steps = FullyConnected(%x, %w) {flatten=False, no_bias=True, num_hidden=5}
            : f32[4,2,5]
          return %a_steps
        }
    """

    name: ClassVar[str] = "hoist-projections"

    min_steps: int = 4

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Follow every cut sequence as far as all its steps are treated alike; linear."""
        cuts = [node.id for node in graph if self._is_cut(graph, node)]
        if not cuts:
            return graph
        edited = graph.copy()
        held = held_nodes(graph)
        pending = cuts[::-1]
        while pending:
            cut = pending.pop()
            if cut not in edited:
                continue
            hoister = _Hoister(edited, edited[cut], held)
            for node, cut_again in hoister.run():
                cx.passed(f"{hoister.steps} {canonical(node.op)} became one over all steps", node)
                cx.count("operators", hoister.steps)
                pending += cut_again
        return graph if edited.is_unchanged_from(graph) else edited

    def _is_cut(self, graph: Graph, node: Node) -> bool:
        return (
            canonical(node.op) == "SliceChannel"
            and node.attrs.get("squeeze_axis") in (True, 1)
            and node.attrs.get("axis", 1) in (0, 1)
            and len(node.types) >= self.min_steps
            and graph.type_of(node.inputs[0]).rank == 3
            and graph.type_of(node.inputs[0]).is_static
        )


class _Hoister:
    """Moves what reads all outputs of one cut in front of it."""

    def __init__(self, graph: Graph, cut: Node, held: frozenset[NodeId]) -> None:
        self.graph, self.cut, self.held = graph, cut, held
        self.axis = int(cut.attrs.get("axis", 1))
        self.steps = len(cut.types)

    def run(self) -> list[tuple[Node, list[NodeId]]]:
        """Hoist each group of readers; returns what was made, and where that is cut again."""
        made: list[tuple[Node, list[NodeId]]] = []
        rejoin(self.graph, list(self.cut.values), self.cut.inputs[0], self.axis)
        if self.cut.id not in self.graph:
            return made
        for use in self.graph.users(self.cut.out(0)):
            if use.node not in self.graph:
                continue
            group = self._group(self.graph[use.node], use.position)
            if group is not None:
                made.append(self._hoist(group))
        return made

    def _group(self, first: Node, position: int) -> list[Node] | None:
        """A reader of the first step and its counterparts in the others."""
        if not self._is_batchable(first):
            return None
        group = [first]
        for step in range(1, self.steps):
            value = self.cut.out(step)
            found = next(
                (
                    self.graph[use.node]
                    for use in self.graph.users(value)
                    if use.position == position and self._is_like(first, self.graph[use.node], step)
                ),
                None,
            )
            if found is None:
                return None
            group.append(found)
        return group

    def _is_like(self, first: Node, node: Node, step: int) -> bool:
        if (node.op, node.attrs, node.types) != (first.op, first.attrs, first.types):
            return False
        if node.id in self.held or node.after or len(node.inputs) != len(first.inputs):
            return False
        return all(
            ours == theirs if self._source(ours) is None else theirs == Value(ours.node, step)
            for ours, theirs in zip(first.inputs, node.inputs, strict=True)
        )

    def _source(self, value: Value) -> Value | None:
        """The sequence whose first step a value is, if it is cut as ours is."""
        node = self.graph[value.node]
        is_alike = canonical(node.op) == "SliceChannel" and node.attrs == self.cut.attrs
        if value.index == 0 and is_alike and self.graph.type_of(node.inputs[0]).rank == 3:
            return node.inputs[0]
        return None

    def _is_batchable(self, node: Node) -> bool:
        op = canonical(node.op)
        if node.id in self.held or node.after or node.graphs or not node.type.is_static:
            return False
        if len(node.types) != 1 or (node.type.rank or 0) != 2:
            return False
        others = [value for value in node.inputs if self._source(value) is None]
        if op == "FullyConnected":
            return self._source(node.inputs[0]) is not None and len(others) + 1 == len(node.inputs)
        if op == "Concat":
            return int(node.attrs.get("dim", 1)) % 2 == 1 and not others
        if op in _LAST_AXIS:
            return len(node.inputs) == 1 and int(node.attrs.get("axis", -1)) % 2 == 1
        if op not in POINTWISE or op in _BY_SHAPE:
            return False
        # What all steps share is stretched along them: rows are, matrices are not always.
        return all(len(extents(self.graph, value)) <= 1 for value in others)

    def _hoist(self, group: Sequence[Node]) -> tuple[Node, list[NodeId]]:
        first = group[0]
        op = canonical(first.op)
        inputs = [
            value if source is None else source
            for value, source in ((value, self._source(value)) for value in first.inputs)
        ]
        attrs = first.attrs
        if op == "FullyConnected":
            attrs = attrs.set(flatten=False)
        elif op == "Concat":
            attrs = attrs.set(dim=2)
        elif op in _LAST_AXIS:
            attrs = attrs.set(axis=-1)
        row = extents(self.graph, first.out())
        shape = [row[0], row[1]]
        shape.insert(self.axis, self.steps)
        base = first.name or op
        made = self.graph.add(
            first.op,
            inputs,
            attrs,
            [TensorType(first.type.dtype, tuple(shape))],
            self.graph.unique_name(f"{base}_steps"),
            origin=[node.name for node in group if node.name][:32],
        )
        parts = [node.out() for node in group]
        cut_again = []
        rejoin(self.graph, parts, made.out(), self.axis)
        if any(self.graph.users(part) or self.graph.is_output(part) for part in parts):
            cut = self.graph.add(
                "SliceChannel",
                [made],
                self.cut.attrs,
                [first.type] * self.steps,
                self.graph.unique_name(f"{base}_cut"),
            )
            for step, part in enumerate(parts):
                self.graph.replace_uses(part, cut.out(step))
            cut_again.append(cut.id)
        erase_unused(self.graph, [node.id for node in group])
        return made, cut_again
