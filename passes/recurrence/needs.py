"""Which values of a step have to be computed for themselves, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.errors import GraphoptError
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.rows import ROWS
from graphopt.passes.recurrence.values import Values

#: Operators that add up what they read.
SUMS = frozenset({"elemwise_add", "broadcast_add", "_npi_add", "add_n"})
_PRODUCTS = frozenset({"FullyConnected", "dot"})


class Needs:
    """What a step has to compute for itself: products, and what kernels have to leave as columns.

    Attributes:
        terms: of every product, those that are summed up in it; none if it is part of another one.
        vector_sums: vectors that are only added to others, under the one that has the sum's place.
    """

    def __init__(self, values: Values) -> None:
        """Of the values of a step; nothing is known before :meth:`targets`."""
        self._values, self._body = values, values.body
        self.terms: dict[Value, list[Node]] = {}
        self.vector_sums: dict[NodeId, list[NodeId]] = {}
        self._ranks: dict[Value, int] = {}

    def targets(self, wanted: Sequence[Value]) -> list[Value]:
        """Values that products, the next step or other kernels read, sources first.

        Args:
            wanted: what the step returns, behind copies.

        Raises:
            GraphoptError: a recurrence cannot compute an operator that they need.
        """
        uses = self._values.uses()
        found: dict[Value, None] = {}
        state: dict[Value, bool] = {}
        stack = [(value, True) for value in reversed(wanted)]
        targets = {value for value in wanted if not self._values.is_source(value)}
        while stack:
            value, enter = stack.pop()
            if not enter:
                state[value] = True
                if value in targets:
                    found[value] = None
                continue
            if value in state:
                continue
            state[value] = False
            stack.append((value, False))
            for source, must_be_made in self._reads(value, uses):
                if must_be_made and not self._values.is_source(source):
                    targets.add(source)
                    if state.get(source):  # seen before it was known to be one
                        found[source] = None
                stack.append((source, True))
        return list(found)

    def _reads(self, value: Value, uses: dict[Value, int]) -> list[tuple[Value, bool]]:
        """What a value is computed from, and whether that has to be there as columns."""
        node = self._body[value.node]
        if node.is_input:
            return []
        op = canonical(node.op)
        sliced = self._values.sliced(value)
        if sliced is not None:
            inner = self._values.resolve(sliced[0])
            return [(inner, not self._is_computed_by_reader(value, inner))]
        parts = self._values.parts(value)
        if parts is not None:
            return [(self._values.resolve(part), True) for part in parts]
        if op in _PRODUCTS:
            self.terms.setdefault(value, [node])
            return [(source, True) for source in self._factors(node)]
        if op in SUMS:
            self._merge_products(value, node, uses)
        if op in POINTWISE or op in ROWS:
            self._check(node, op)
            sources = map(self._values.resolve, node.inputs)
            return [(source, not self._can_inline(node, op, source)) for source in sources]
        raise GraphoptError(f"{node.label}: a recurrence cannot compute it")

    def _factors(self, node: Node) -> list[Value]:
        """What a product reads besides its matrix."""
        return [self._values.resolve(node.inputs[0])]

    def _is_computed_by_reader(self, part: Value, inner: Value) -> bool:
        """Whether the kernel that reads columns of ``inner`` can compute these alone.

        It computes as many columns as it has itself. One column of several may be stretched over
        all of those, so that has to be there.
        """
        is_one_of_several = self._values.width(part) == 1 != self._values.width(inner)
        return self._values.is_pointwise(inner) and (
            self._values.is_source(inner) or not is_one_of_several
        )

    def _can_inline(self, reader: Node, op: str, source: Value) -> bool:
        """Whether the kernel that computes ``reader`` can compute ``source`` on the way."""
        node = self._body[source.node]
        if node.is_input:
            return True
        inner = canonical(node.op)
        if inner in ROWS:
            # Rows are reduced over as wide as they are.
            return self.space(source) == self.space(reader.out())
        if op in ROWS and self._values.sliced(source) is None:
            return inner in POINTWISE
        return self._values.is_pointwise(source)

    def _check(self, node: Node, op: str) -> None:
        entry = POINTWISE[op] if op in POINTWISE else ROWS[op]
        why = entry.check(node, self._body)
        if why is None and op in ROWS and ROWS[op].axes(node.attrs, 2) != (1,):
            why = "it runs over the batch"
        if why is not None:
            raise GraphoptError(f"{node.label}: {why}")

    def _merge_products(self, value: Value, node: Node, uses: dict[Value, int]) -> None:
        """Sums of products that nothing else reads, and none of them stretched, become one."""
        summands = self._summands(value, uses)
        self._merge_vectors([v for v in summands if self._values.is_parameter(v) and uses[v] == 1])
        shape = self._values.shape(value)
        mine = [
            v for v in summands if self._is_lone_product(v, uses) and self._values.shape(v) == shape
        ]
        if len(mine) < 2 or any(v in self.terms for v in mine):
            return
        first, *others = mine
        self.terms[first] = [self._body[v.node] for v in mine]
        for other in others:
            self.terms[other] = []

    def _merge_vectors(self, vectors: Sequence[Value]) -> None:
        """Sums of rows that nothing else reads are computed once, before the first step."""
        nodes = [v.node for v in vectors if len(self._values.shape(v)) == 1]
        if len(nodes) < 2 or len({self._values.shape(v) for v in vectors}) > 1:
            return
        if not any(node in group for group in self.vector_sums.values() for node in nodes):
            self.vector_sums[nodes[0]] = nodes

    def is_absorbed(self, value: Value) -> bool:
        """Whether a value is part of a product that stands elsewhere in the same sum."""
        if self.terms.get(value) == []:
            return True
        if any(value.node in group[1:] for group in self.vector_sums.values()):
            return True
        node = self._body[value.node]
        return canonical(node.op) in SUMS and all(
            self.is_absorbed(self._values.resolve(source)) for source in node.inputs
        )

    def _summands(self, value: Value, uses: dict[Value, int]) -> list[Value]:
        found: list[Value] = []
        pending = [value]
        while pending:
            current = pending.pop()
            node = self._body[current.node]
            if canonical(node.op) in SUMS and (current == value or uses[current] == 1):
                pending += [self._values.resolve(v) for v in reversed(node.inputs)]
            else:
                found.append(current)
        return found

    def _is_lone_product(self, value: Value, uses: dict[Value, int]) -> bool:
        return canonical(self._body[value.node].op) in _PRODUCTS and uses[value] == 1

    def rank(self, value: Value) -> int:
        """How many products and kernels one after another come before a value."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self._ranks:
                pending.pop()
                continue
            reads = self._depends(current)
            missing = [source for source, _ in reads if source not in self._ranks]
            if missing:
                pending += missing
                continue
            self._ranks[current] = max((self._ranks[s] + step for s, step in reads), default=0)
            pending.pop()
        return self._ranks[value]

    def _depends(self, value: Value) -> list[tuple[Value, int]]:
        node = self._body[value.node]
        if node.is_input:
            return []
        if value in self.terms:
            nodes = self.terms[value] or [node]
            return [(source, 1) for term in nodes for source in self._factors(term)]
        sliced = self._values.sliced(value)
        if sliced is not None:
            inner = self._values.resolve(sliced[0])
            is_on_the_way = self._is_computed_by_reader(value, inner) or inner in self.terms
            return [(inner, 0 if is_on_the_way else 1)]
        parts = self._values.parts(value)
        if parts is not None:
            return [(self._values.resolve(part), 0) for part in parts]
        op = canonical(node.op)
        found = []
        for source in map(self._values.resolve, node.inputs):
            is_made = not self._can_inline(node, op, source) and source not in self.terms
            found.append((source, int(is_made)))
        return found

    def space(self, value: Value) -> int:
        """Columns of the kernel that computes a value."""
        node = self._body[value.node]
        op = canonical(node.op)
        if op in ROWS:
            return self._values.width(self._values.resolve(node.inputs[0]))
        return self._values.width(value)
