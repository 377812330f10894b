"""A step of a recurrence in MXNet's operators -> RecurrenceSpec.

Values of the step are matrices (batch, columns). Products and kernels alternate: a kernel computes
at once whatever is needed next and has the products behind it. Slices cost nothing, as products and
kernels read columns where they lie; a slice of a pointwise result is the result on slices. Biases
are added by the kernels, and products that are summed become one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.kernels.recurrence.spec import Map, Part, Product, RecurrenceSpec, Ref, Step, Term
from graphopt.kernels.spec import Arg, Builder, Operand
from graphopt.passes.fusion.pointwise import POINTWISE, prepared
from graphopt.passes.fusion.rows import ROWS

_SUMS = frozenset({"elemwise_add", "broadcast_add", "_npi_add", "add_n"})
_PRODUCTS = frozenset({"FullyConnected", "dot"})
_COPIES = frozenset({"_copy", "identity"})


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
        self.body, self.n_sequences, self.n_states = body, sequences, states
        self.inputs = {node.id: n for n, node in enumerate(body.inputs)}
        self.matrix_of: dict[NodeId, int] = {}
        self.vector_of: dict[NodeId, int] = {}
        #: Vectors that are only added to others, with the one that has the sum's place.
        self.vector_sums: dict[NodeId, list[NodeId]] = {}
        self.made: dict[Value, Ref] = {}
        self.ranks: dict[Value, int] = {}
        #: Of every product, those that are summed up in it; none if it is part of another one.
        self.terms: dict[Value, list[Node]] = {}
        self.steps: list[Step] = []
        self.count = 0
        dtypes = {t.dtype for node in body for t in node.types}
        if len(dtypes) != 1 or not dtypes <= {"float32", "float64"}:
            told = ", ".join(sorted(map(str, dtypes)))
            raise GraphoptError(f"a step computes in one of float32 and float64, not in {told}")
        self.dtype = str(dtypes.pop())

    def run(self) -> Body:
        wanted = [self._resolve(value) for value in self.body.outputs]
        targets = self._targets(wanted)
        by_rank: dict[int, list[Value]] = defaultdict(list)
        for value in targets:
            by_rank[self._rank(value)].append(value)
        for rank in sorted(by_rank):
            products = [v for v in by_rank[rank] if v in self.terms]
            for value in products:
                self._product(value)
            by_width: dict[int, list[Value]] = defaultdict(list)
            for value in by_rank[rank]:
                if value not in self.terms:
                    by_width[self._space(value)].append(value)
            for width, group in by_width.items():
                self._map(group, width)
        refs = [self._leaving(value) for value in wanted]
        spec = RecurrenceSpec(
            self.dtype,
            tuple(self._width(self._input(n)) for n in range(self.n_sequences)),
            tuple(
                self._width(self._input(n))
                for n in range(self.n_sequences, self.n_sequences + self.n_states)
            ),
            tuple(self._matrix_shape(node) for node in self.matrix_of),
            tuple(self.body[node].type.size or 1 for node in self.vector_of),
            tuple(self.steps),
            tuple(refs[: self.n_states]),
            tuple(refs[self.n_states :]),
        )
        return Body(
            spec,
            tuple(self.inputs[node] for node in self.matrix_of),
            tuple(
                tuple(self.inputs[other] for other in self.vector_sums.get(node, (node,)))
                for node in self.vector_of
            ),
        )

    # What there is

    def _input(self, number: int) -> Value:
        return self.body.inputs[number].out()

    def _shape(self, value: Value) -> tuple[int, ...]:
        shape = self.body.type_of(value).shape
        if shape is None or any(extent is None for extent in shape):
            raise GraphoptError(f"{self.body[value.node].label}: its shape is not known")
        return tuple(extent or 0 for extent in shape)

    def _width(self, value: Value) -> int:
        """Columns of a value with a row for every sequence."""
        shape = self._shape(value)
        if len(shape) != 2 or 0 in shape:
            raise GraphoptError(
                f"{self.body[value.node].label}: {shape} is no matrix of a row for each sequence"
            )
        return shape[1]

    def _matrix_shape(self, node: NodeId) -> tuple[int, int]:
        shape = self._shape(self.body[node].out())
        if len(shape) != 2:
            raise GraphoptError(f"{self.body[node].label}: {shape} is no matrix")
        return shape[0], shape[1]

    def _is_parameter(self, value: Value) -> bool:
        return self.inputs.get(value.node, -1) >= self.n_sequences + self.n_states

    def _matrix(self, value: Value) -> int:
        if not self._is_parameter(value):
            raise GraphoptError(
                f"{self.body[value.node].label}: a matrix that is not the same in all steps"
            )
        if value.node in self.vector_of:
            raise GraphoptError(
                f"{self.body[value.node].label} is multiplied with and read element by element"
            )
        return self.matrix_of.setdefault(value.node, len(self.matrix_of))

    def _vector(self, value: Value) -> Ref:
        if value.node in self.matrix_of:
            raise GraphoptError(
                f"{self.body[value.node].label} is multiplied with and read element by element"
            )
        shape = self._shape(value)
        if not shape or math.prod(shape) != shape[-1]:
            raise GraphoptError(
                f"{self.body[value.node].label}: {shape} is neither a matrix to multiply with"
                " nor a row"
            )
        index = self.vector_of.setdefault(value.node, len(self.vector_of))
        return Ref("v", index, 0, shape[-1])

    # Views

    def _resolve(self, value: Value) -> Value:
        """The value behind copies."""
        node = self.body[value.node]
        while canonical(node.op) in _COPIES or self._is_trivial_reshape(node):
            value = node.inputs[0]
            node = self.body[value.node]
        return value

    def _is_trivial_reshape(self, node: Node) -> bool:
        return canonical(node.op) in ("Reshape", "Flatten") and self._shape(
            node.inputs[0]
        ) == self._shape(node.out())

    def _sliced(self, value: Value) -> tuple[Value, int] | None:
        """If a value is columns of another one: that, and the first column."""
        node = self.body[value.node]
        if node.is_input:
            return None
        op = canonical(node.op)
        if op in ("SliceChannel", "slice_axis", "slice"):
            return node.inputs[0], _first_column(node, value.index, self._shape(node.inputs[0]))
        return None

    def _parts(self, value: Value) -> list[Value] | None:
        """What a value is put together from, side by side."""
        node = self.body[value.node]
        if canonical(node.op) != "Concat":
            return None
        axis = int(node.attrs.get("dim", 1)) % 2
        if axis != 1:
            raise GraphoptError(f"{node.label} puts the sequences of the batch together")
        return list(node.inputs)

    # What has to be computed for itself

    def _targets(self, wanted: Sequence[Value]) -> list[Value]:
        """Values that products, the next step or other kernels read, sources first."""
        uses = self._uses()
        found: dict[Value, None] = {}
        state: dict[Value, bool] = {}
        stack = [(value, True) for value in reversed(wanted)]
        targets = {value for value in wanted if not self._is_source(value)}
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
                if must_be_made and not self._is_source(source):
                    targets.add(source)
                    if state.get(source):  # seen before it was known to be one
                        found[source] = None
                stack.append((source, True))
        return list(found)

    def _is_source(self, value: Value) -> bool:
        return value.node in self.inputs

    def _uses(self) -> dict[Value, int]:
        uses: dict[Value, int] = defaultdict(int)
        for node in self.body:
            for value in node.inputs:
                uses[self._resolve(value)] += 1
        for value in self.body.outputs:
            uses[self._resolve(value)] += 1
        return uses

    def _reads(self, value: Value, uses: dict[Value, int]) -> list[tuple[Value, bool]]:
        """What a value is computed from, and whether that has to be there as columns."""
        node = self.body[value.node]
        if node.is_input:
            return []
        op = canonical(node.op)
        sliced = self._sliced(value)
        if sliced is not None:
            inner = self._resolve(sliced[0])
            return [(inner, not self._is_pointwise(inner))]
        parts = self._parts(value)
        if parts is not None:
            return [(self._resolve(part), True) for part in parts]
        if op in _PRODUCTS:
            self.terms.setdefault(value, [node])
            return [(source, True) for source in self._factors(node)]
        if op in _SUMS:
            self._merge_products(value, node, uses)
        if op in POINTWISE or op in ROWS:
            self._check(node, op)
            sources = map(self._resolve, node.inputs)
            return [(source, not self._can_inline(node, op, source)) for source in sources]
        raise GraphoptError(f"{node.label}: a recurrence cannot compute it")

    def _factors(self, node: Node) -> list[Value]:
        """What a product reads besides its matrix."""
        return [self._resolve(node.inputs[0])]

    def _is_pointwise(self, value: Value) -> bool:
        node = self.body[value.node]
        if node.is_input:
            return True
        op = canonical(node.op)
        return op in POINTWISE or self._sliced(value) is not None

    def _can_inline(self, reader: Node, op: str, source: Value) -> bool:
        """Whether the kernel that computes ``reader`` can compute ``source`` on the way."""
        node = self.body[source.node]
        if node.is_input:
            return True
        inner = canonical(node.op)
        if inner in ROWS:
            # Rows are reduced over as wide as they are.
            return self._space(source) == self._space(reader.out())
        if op in ROWS and self._sliced(source) is None:
            return inner in POINTWISE
        return self._is_pointwise(source)

    def _check(self, node: Node, op: str) -> None:
        entry = POINTWISE[op] if op in POINTWISE else ROWS[op]
        why = entry.check(node, self.body)
        if why is None and op in ROWS and ROWS[op].axes(node.attrs, 2) != (1,):
            why = "it runs over the batch"
        if why is not None:
            raise GraphoptError(f"{node.label}: {why}")

    def _merge_products(self, value: Value, node: Node, uses: dict[Value, int]) -> None:
        """Sums of products that nothing else reads become one product."""
        summands = self._summands(value, uses)
        self._merge_vectors([v for v in summands if self._is_parameter(v) and uses[v] == 1])
        mine = [v for v in summands if self._is_lone_product(v, uses)]
        if len(mine) < 2 or any(v in self.terms for v in mine):
            return
        first, *others = mine
        self.terms[first] = [self.body[v.node] for v in mine]
        for other in others:
            self.terms[other] = []

    def _merge_vectors(self, vectors: Sequence[Value]) -> None:
        """Sums of rows that nothing else reads are computed once, before the first step."""
        nodes = [v.node for v in vectors if len(self._shape(v)) == 1]
        if len(nodes) < 2 or len({self._shape(v) for v in vectors}) > 1:
            return
        if not any(node in group for group in self.vector_sums.values() for node in nodes):
            self.vector_sums[nodes[0]] = nodes

    def _is_absorbed(self, value: Value) -> bool:
        """Whether a value is part of a product that stands elsewhere in the same sum."""
        if self.terms.get(value) == []:
            return True
        if any(value.node in group[1:] for group in self.vector_sums.values()):
            return True
        node = self.body[value.node]
        return canonical(node.op) in _SUMS and all(
            self._is_absorbed(self._resolve(source)) for source in node.inputs
        )

    def _summands(self, value: Value, uses: dict[Value, int]) -> list[Value]:
        found: list[Value] = []
        pending = [value]
        while pending:
            current = pending.pop()
            node = self.body[current.node]
            if canonical(node.op) in _SUMS and (current == value or uses[current] == 1):
                pending += [self._resolve(v) for v in reversed(node.inputs)]
            else:
                found.append(current)
        return found

    def _is_lone_product(self, value: Value, uses: dict[Value, int]) -> bool:
        return canonical(self.body[value.node].op) in _PRODUCTS and uses[value] == 1

    # In which order

    def _rank(self, value: Value) -> int:
        """How many products and kernels one after another come before a value."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self.ranks:
                pending.pop()
                continue
            reads = self._depends(current)
            missing = [source for source, _ in reads if source not in self.ranks]
            if missing:
                pending += missing
                continue
            self.ranks[current] = max((self.ranks[s] + step for s, step in reads), default=0)
            pending.pop()
        return self.ranks[value]

    def _depends(self, value: Value) -> list[tuple[Value, int]]:
        node = self.body[value.node]
        if node.is_input:
            return []
        if value in self.terms:
            nodes = self.terms[value] or [node]
            return [(source, 1) for term in nodes for source in self._factors(term)]
        sliced = self._sliced(value)
        if sliced is not None:
            inner = self._resolve(sliced[0])
            return [(inner, 0 if self._is_pointwise(inner) or inner in self.terms else 1)]
        parts = self._parts(value)
        if parts is not None:
            return [(self._resolve(part), 0) for part in parts]
        op = canonical(node.op)
        found = []
        for source in map(self._resolve, node.inputs):
            is_made = not self._can_inline(node, op, source) and source not in self.terms
            found.append((source, int(is_made)))
        return found

    def _space(self, value: Value) -> int:
        """Columns of the kernel that computes a value."""
        node = self.body[value.node]
        op = canonical(node.op)
        if op in ROWS:
            return self._width(self._resolve(node.inputs[0]))
        return self._width(value)

    # Steps

    def _product(self, value: Value) -> None:
        terms = []
        for node in self.terms[value]:
            terms += self._terms_of(node)
        if not terms:
            return  # part of another one
        self.steps.append(Product(tuple(terms)))
        self.made[value] = Ref("t", self.count, 0, terms[0].width)
        self.count += 1

    def _terms_of(self, node: Node) -> list[Term]:
        matrix = self._resolve(node.inputs[1])
        index = self._matrix(matrix)
        rows, columns = self._matrix_shape(matrix.node)
        if canonical(node.op) == "dot":
            if node.attrs.flag("transpose_a"):
                raise GraphoptError(f"{node.label} sums over the batch")
            transposed = node.attrs.flag("transpose_b")
        else:
            transposed = True
        at, terms = 0, []
        for ref in self._columns(self._resolve(node.inputs[0]), 0, None):
            part = (
                Part(index, 0, at, rows, ref.width)
                if transposed
                else Part(index, at, 0, ref.width, columns)
            )
            terms.append(Term(ref, part, transposed))
            at += ref.width
        return terms

    def _columns(self, value: Value, start: int, width: int | None) -> list[Ref]:
        """Where columns of a value lie; they have been computed."""
        if width is None:
            width = self._width(value)
        if value in self.made:
            return [self.made[value].part(start, width)]
        number = self.inputs.get(value.node)
        if number is not None:
            if self._is_parameter(value):
                raise GraphoptError(f"{self.body[value.node].label} is multiplied with a matrix")
            kind = "x" if number < self.n_sequences else "s"
            index = number - (0 if kind == "x" else self.n_sequences)
            return [Ref(kind, index, start, width)]
        sliced = self._sliced(value)
        if sliced is not None:
            return self._columns(self._resolve(sliced[0]), start + sliced[1], width)
        parts = self._parts(value)
        if parts is None:
            raise GraphoptError(f"{self.body[value.node].label} is read before it is computed")
        found: list[Ref] = []
        at = 0
        for part in map(self._resolve, parts):
            size = self._width(part)
            low, high = max(start, at), min(start + width, at + size)
            if low < high:
                found += self._columns(part, low - at, high - low)
            at += size
        return found

    def _leaving(self, value: Value) -> Ref:
        refs = self._columns(value, 0, None)
        if len(refs) != 1:
            raise GraphoptError(f"{self.body[value.node].label}: a state made of several parts")
        return refs[0]

    def _map(self, values: Sequence[Value], width: int) -> None:
        kernel = _Kernel(self, width)
        values = [v for v in values if not self._lies_somewhere(v)]
        if not values:
            return
        step = kernel.build(values)
        self.steps.append(step)
        for n, value in enumerate(values):
            self.made[value] = Ref("t", self.count + n, 0, step.widths[n])
        self.count += len(values)

    def _lies_somewhere(self, value: Value) -> bool:
        """Whether a value is columns of what is there already."""
        node = self.body[value.node]
        if node.is_input or value in self.made:
            return True
        sliced = self._sliced(value)
        if sliced is not None:
            return self._lies_somewhere(self._resolve(sliced[0]))
        parts = self._parts(value)
        return parts is not None and all(self._lies_somewhere(self._resolve(p)) for p in parts)


class _Kernel:
    """The kernel of one step of the program, put together from what its outputs need."""

    def __init__(self, translator: _Translator, width: int) -> None:
        self.of, self.width = translator, width
        self.sources: dict[Ref, int] = {}
        self.has_rows = False

    def build(self, values: Sequence[Value]) -> Map:
        # First what it reads, as inputs come before instructions.
        self._walk(values, _Survey())
        emit = Builder(self.of.dtype, 2, int(self.has_rows))
        args = {ref: emit.input(self._operand(ref)) for ref in self.sources}
        results = self._walk(values, emit, args)
        outputs = []
        for value, result in zip(values, results, strict=True):
            whole = self.of._width(value) == self.width
            outputs.append((result, Operand(self.of.dtype, (0, 1 if whole else None))))
        spec = emit.build(outputs)
        return Map(spec, tuple(self.sources), tuple(self.of._width(value) for value in values))

    def _operand(self, ref: Ref) -> Operand:
        along = 1 if ref.width == self.width else None
        return Operand(self.of.dtype, (along,) if ref.kind == "v" else (0, along))

    def _walk(
        self, values: Sequence[Value], emit: Builder | _Survey, args: dict[Ref, int] | None = None
    ) -> list[Arg]:
        """Emit what the values need; depth first without recursion."""
        done: dict[tuple[Value, int], Arg] = {}
        for wanted in values:
            pending = [(wanted, 0)]
            while pending:
                value, start = pending[-1]
                if (value, start) in done:
                    pending.pop()
                    continue
                reads = self._reads(value, start)
                if isinstance(reads, Ref):
                    self.sources.setdefault(reads, len(self.sources))
                    done[value, start] = 0 if args is None else args[reads]
                    pending.pop()
                    continue
                missing = [read for read in reads if read not in done]
                if missing:
                    pending += missing
                    continue
                done[value, start] = self._emit(value, [done[read] for read in reads], emit)
                pending.pop()
        return [done[value, 0] for value in values]

    def _reads(self, value: Value, start: int) -> Ref | list[tuple[Value, int]]:
        """Where a value lies, or else the values (each from a first column) it is computed from."""
        of = self.of
        node = of.body[value.node]
        if of._is_parameter(value):
            ref = of._vector(value)
            return ref if ref.width == 1 else ref.part(start, self.width)
        if of._lies_somewhere(value):
            width = of._width(value)
            refs = of._columns(value, start, 1 if width == 1 else self.width)
            if len(refs) == 1:
                return refs[0]
            raise GraphoptError(f"{node.label}: parts of it are read together")
        sliced = of._sliced(value)
        if sliced is not None:
            return [(of._resolve(sliced[0]), start + sliced[1])]
        parts = of._parts(value)
        if parts is not None:
            at = 0
            for part in map(of._resolve, parts):
                size = of._width(part)
                if at <= start and start + self.width <= at + size:
                    return [(part, start - at)]
                at += size
            raise GraphoptError(f"{node.label}: parts of it are read together")
        op = canonical(node.op)
        if op in ROWS:
            self.has_rows = True
            if start != 0:
                raise GraphoptError(f"{node.label}: a part of its rows is read")
        # Inputs that are stretched along the columns have one column only.
        found = []
        for source in map(of._resolve, node.inputs):
            if op in _SUMS and of._is_absorbed(source):
                continue
            shape = of._shape(source)
            found.append((source, 0 if shape[-1:] == (1,) else start))
        return found

    def _emit(self, value: Value, args: Sequence[Arg], emit: Builder | _Survey) -> Arg:
        node = self.of.body[value.node]
        op = canonical(node.op)
        if isinstance(emit, _Survey):
            return 0
        if op in _SUMS:
            total: Arg = args[0] if args else 0.0
            for arg in args[1:]:
                total = emit("add", total, arg)
            return total
        if op in POINTWISE:
            return POINTWISE[op].build(emit, args, prepared(node, self.of.body))
        if op in ROWS:
            return ROWS[op].build(emit, args, prepared(node, self.of.body))
        return args[0]  # a slice


class _Survey:
    """Stands in for a builder while a kernel's operands are found out."""


def _first_column(node: Node, output: int, shape: tuple[int, ...]) -> int:
    """Where the columns begin that a slicing node takes."""
    op = canonical(node.op)
    if len(shape) != 2:
        raise GraphoptError(f"{node.label}: it slices {shape}, no matrix")
    if op == "SliceChannel":
        if int(node.attrs.get("axis", 1)) % 2 != 1 or node.attrs.flag("squeeze_axis"):
            raise GraphoptError(f"{node.label} does not slice columns")
        return output * (shape[1] // int(node.attrs["num_outputs"]))
    if op == "slice_axis":
        if int(node.attrs["axis"]) % 2 != 1:
            raise GraphoptError(f"{node.label} does not slice columns")
        begin = int(node.attrs["begin"])
        return begin % shape[1] if begin else 0
    begins, steps = (_tuple(node.attrs.get(key)) for key in ("begin", "step"))
    if any(step not in (None, 1) for step in steps) or node.type.shape is None:
        raise GraphoptError(f"{node.label} takes not every column")
    if node.type.shape[0] != shape[0]:
        raise GraphoptError(f"{node.label} takes some sequences of the batch only")
    first = begins[1] if len(begins) > 1 else None
    return 0 if not first else int(first) % shape[1]


def _tuple(found: object) -> tuple[int | None, ...]:
    return found if isinstance(found, tuple) else ()
