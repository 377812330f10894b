"""Recurrences that read rows of a table by number, and multiply each row in use once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, RECURRENCE, Node, Value
from graphopt.ir.ops import canonical
from graphopt.kernels.recurrence.lookup import Lookup, project
from graphopt.kernels.recurrence.spec import RecurrenceSpec, parse
from graphopt.passes.fusion.region import origin_of
from graphopt.passes.layout.transposes import TRANSPOSES, order_of
from graphopt.passes.recurrence.sequences import erase_unused, extents, swapped
from graphopt.pipeline.base import Pass, PassContext
from graphopt.rewrite.substitute import transplant

_NUMBERS = frozenset({"float32", "float64", "int32", "int64"})

#: What it costs to read an element of the projected table, and in training to write its gradient
#: for each step and to sum these by row, as additions and multiplications of products.
_READ, _SUM = 45, 95


@dataclass(frozen=True)
class HoistLookups(Pass):
    """Recurrences over embedded tokens multiply each row of the table once, not each token.

    The lookup moves into the recurrence, which finds out at run time which rows are in use,
    multiplies these with its input matrices, and reads the products by number. In training the
    gradients of all steps are summed by row before they are multiplied. Both ``Embedding`` and the
    recurrence's nested graphs keep their meaning: numbers outside of the table are clipped, and
    lowering can put back what was there.

    It is done where it is less work even if all words are equally frequent, for shapes at hand: in
    texts they are not, and fewer rows are in use. ``sparse_grad=True`` keeps the lookup in
    training, as the table's gradient is dense here.

    Args:
        always: without regard to work.

    Example::

        // before
        %x = Embedding(%tokens, %table) {input_dim=20, output_dim=8} : f32[50,8,8]
        %y = graphopt_recurrence(%x, %wx, %wh, %b) {spec="recurrence f32 (8) (8) ...",
          zero_states=True}
        // after
        %y = graphopt_recurrence(%table, %wx, %wh, %b, %tokens) {indexed=True,
          spec="recurrence f32 (8) (8) ...", zero_states=True}
    """

    name: ClassVar[str] = "hoist-lookups"

    always: bool = False

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Take them one by one; linear."""
        nodes = [node for node in graph if node.op == RECURRENCE]
        if not nodes:
            return graph
        edited = graph.copy()
        held = held_nodes(graph)
        for each in nodes:
            node = edited[each.id]
            read = _lookup(edited, node)
            if read is None:
                self._tell_of_others(edited, node, cx)
                continue
            try:
                if node.id in held or node.after or read.embedding.id in held:
                    raise GraphoptError("other nodes are ordered around it")
                told = self._check(edited, node, read, cx)
            except GraphoptError as error:
                cx.missed(f"every token's row is multiplied: {error}", node)
                continue
            _take_in(edited, node, read)
            cx.passed(told, node)
            cx.count("lookups")
        return graph if edited.is_unchanged_from(graph) else edited

    def _check(self, graph: Graph, node: Node, read: _Read, cx: PassContext) -> str:
        """What to tell if it is done.

        Raises:
            GraphoptError: it is not; the message says why.
        """
        tokens, table = (graph.type_of(value) for value in read.embedding.inputs)
        if not (tokens.is_static and table.is_static) or tokens.rank != 2:
            raise GraphoptError("shapes of tokens and table are not known")
        if tokens.dtype not in _NUMBERS:
            raise GraphoptError(f"tokens are {tokens.dtype}")
        if cx.settings.precise:
            raise GraphoptError("its sums would be rounded in another order")
        if cx.training and read.embedding.attrs.flag("sparse_grad"):
            raise GraphoptError("sparse_grad=True asks for a gradient of the rows in use")
        spec = parse(str(node.attrs["spec"]))
        if spec.dtype != table.dtype:
            raise GraphoptError(f"the table is {table.dtype}, the recurrence {spec.dtype}")
        lookup = project(spec)
        count, rows = tokens.size or 0, extents(graph, read.embedding.inputs[1])[0]
        if not count or not rows:
            raise GraphoptError(f"there are {count} tokens and {rows} rows")
        work = _Work(spec, lookup, count, rows, training=cx.training)
        told = f"{work.distinct:.0f} of the table's {rows} rows, not {count} tokens"
        if not self.always and work.after >= work.before:
            raise GraphoptError(
                f"reading products by number would be {work.after / work.before:.2g} times the"
                f" work, were words equally frequent: {told}"
            )
        return (
            f"multiplies rows in use: {told}, were words equally frequent;"
            f" {work.after / work.before:.2g} times the work"
        )

    def _tell_of_others(self, graph: Graph, node: Node, cx: PassContext) -> None:
        for number, value in enumerate(_sequences(node)):
            source, _ = _behind_swap(graph, value)
            op = canonical(source.op)
            if op == "Dropout":
                source, _ = _behind_swap(graph, source.inputs[0])
            if canonical(source.op) != "Embedding":
                continue
            why = "each has a Dropout of its own" if op == "Dropout" else f"they are input {number}"
            cx.missed(f"every token's row is multiplied: {why}", node)


@dataclass(frozen=True)
class _Read:
    """Where a recurrence's first sequence comes from: an Embedding, its axes swapped or not."""

    embedding: Node
    is_swapped: bool


def _sequences(node: Node) -> list[Value]:
    if node.attrs.flag("indexed") or node.attrs.flag("flat"):
        return []
    return list(node.inputs[: len(parse(str(node.attrs["spec"])).sequences)])


def _lookup(graph: Graph, node: Node) -> _Read | None:
    sequences = _sequences(node)
    if not sequences:
        return None
    source, is_swapped = _behind_swap(graph, sequences[0])
    return _Read(source, is_swapped) if canonical(source.op) == "Embedding" else None


def _behind_swap(graph: Graph, value: Value) -> tuple[Node, bool]:
    """What makes a sequence, and whether its first axes are exchanged then."""
    node = graph[value.node]
    is_swapped = _swaps(node)
    return graph[node.inputs[0].node] if is_swapped else node, is_swapped


def _swaps(node: Node) -> bool:
    """Whether it exchanges the first two of three axes."""
    is_transpose = canonical(node.op) in TRANSPOSES and node.type.rank == 3
    return is_transpose and order_of(node, 3) == (1, 0, 2)


class _Work:
    """What multiplying costs, in additions and multiplications of products.

    Attributes:
        before: token by token.
        after: by row in use.
        distinct: how many rows are in use, if words are equally frequent.
    """

    def __init__(
        self, spec: RecurrenceSpec, lookup: Lookup, tokens: int, rows: int, *, training: bool
    ) -> None:
        # Training has two more products of this size, for the gradients of rows and matrix.
        terms = (factor.term for factor in lookup.factors)
        product = 2 * (3 if training else 1) * sum(t.source.width * t.width for t in terms)
        read = lookup.width * (_READ + (_SUM if training else 0))
        self.distinct = -rows * math.expm1(-tokens / rows)
        self.before = tokens * product
        self.after = self.distinct * product + tokens * read


def _take_in(graph: Graph, node: Node, read: _Read) -> None:
    """Give the recurrence the table and the tokens, in the place of rows."""
    tokens, table = read.embedding.inputs
    name = f"{read.embedding.name}_numbers"
    numbers = swapped(graph, tokens, name) if read.is_swapped else tokens
    ends = [node.inputs[-1]] if node.attrs.flag("lengths") else []
    others = node.inputs[1 : len(node.inputs) - len(ends)]
    graphs = list(node.graphs)
    if len(graphs) > 1:
        graphs[1] = _whole(graph, graphs[1], read.embedding, numbers, has_lengths=bool(ends))
    rows = node.inputs[0].node
    graph.update(
        node.but(
            inputs=(table, *others, numbers, *ends),
            attrs=node.attrs.set(indexed=True),
            graphs=tuple(graphs),
            origin=tuple(origin_of([read.embedding, node])),
        )
    )
    erase_unused(graph, [rows])


def _whole(
    graph: Graph, plain: Graph, embedding: Node, numbers: Value, *, has_lengths: bool
) -> Graph:
    """The recurrence in MXNet's operators, behind the lookup."""
    made = Graph(plain.name)
    table = made.add_input("table", DATA, graph.type_of(embedding.inputs[1])).out()
    inner = list(plain.inputs)
    ends = [inner.pop()] if has_lengths else []
    new: dict[Value, Value] = {}
    for node in inner[1:]:
        new[node.out()] = made.add_input(node.name, node.op, node.type).out()
    index = made.add_input("numbers", DATA, graph.type_of(numbers)).out()
    for node in ends:
        new[node.out()] = made.add_input(node.name, node.op, node.type).out()
    rows = made.add("Embedding", [index, table], embedding.attrs, [inner[0].type], "rows")
    new[inner[0].out()] = rows.out()
    for node in plain:
        if not node.is_input:
            transplant(made, node, new)
    made.set_outputs(new[value] for value in plain.outputs)
    return made
