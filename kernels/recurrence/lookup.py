"""A recurrence whose first sequence is rows of a table, by number: the table's rows are projected.

Steps that read the same row of a table multiply it with the same matrices. These products are taken
out of the step, computed once for each row in use, and what is left reads rows of the *projected
table*, which has the columns of all products side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from graphopt.errors import GraphoptError
from graphopt.kernels.recurrence.spec import Map, Product, RecurrenceSpec, Ref, Step, Term
from graphopt.kernels.spec import Arg, KernelSpec, Operand
from graphopt.kernels.spec_builder import Builder

#: The sequence that is read by number.
_SEQUENCE = ("x", 0)


@dataclass(frozen=True)
class Factor:
    """A product that makes some columns of the projected table.

    Attributes:
        column: the first of them.
        term: what is multiplied; its source is some columns of the table.
        adds: whether it is added to what the factor before made.
    """

    column: int
    term: Term
    adds: bool

    def numbers(self) -> list[int]:
        """As the bridge reads it; see ``ReadProjection`` in kernels/bridge/lookup.cc."""
        source, part = self.term.source, self.term.part
        found = [self.column, int(self.adds), source.start, source.width, self.term.width]
        return [*found, part.matrix, part.row, part.column, int(self.term.transposed)]


@dataclass(frozen=True)
class Lookup:
    """A step without its products with rows of the table.

    Attributes:
        factors: the projected table.
        rest: what is left; its first sequence has the columns of the projected table, its matrices
            are those of the whole step.
    """

    factors: tuple[Factor, ...]
    rest: RecurrenceSpec

    @property
    def width(self) -> int:
        """Columns of the projected table."""
        return self.rest.sequences[0]


@lru_cache(maxsize=256)
def project(spec: RecurrenceSpec) -> Lookup:
    """Take the products with the first sequence out of a step.

    Raises:
        GraphoptError: there are none, or the step reads that sequence in another way too.
    """
    return _Parter(spec).run()


class _Parter:
    def __init__(self, spec: RecurrenceSpec) -> None:
        self.spec = spec
        self.factors: list[Factor] = []
        self.width = 0
        self.steps: list[Step] = []
        self.count = 0
        #: By the number of a value: the value that is left of it, and its columns of the table.
        self.left: dict[int, int] = {}
        self.columns: dict[int, int] = {}

    def run(self) -> Lookup:
        spec = self.spec
        for first, step in spec.numbered():
            if isinstance(step, Product):
                self._product(first, step)
            else:
                self._map(first, step)
        leaving = [self._alone(ref) for ref in (*spec.next, *spec.emit)]
        if not self.factors:
            raise GraphoptError("no matrix is multiplied with the rows")
        rest = RecurrenceSpec(
            spec.dtype,
            (self.width, *spec.sequences[1:]),
            spec.states,
            spec.matrices,
            spec.vectors,
            tuple(self.steps),
            tuple(leaving[: len(spec.next)]),
            tuple(leaving[len(spec.next) :]),
        )
        return Lookup(tuple(self.factors), rest)

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        self.count += len(step.widths)
        return self.count - len(step.widths)

    def _product(self, first: int, step: Product) -> None:
        rows = [term for term in step.terms if term.source.key == _SEQUENCE]
        others = [term for term in step.terms if term.source.key != _SEQUENCE]
        if rows:
            self.columns[first] = self.width
            self.factors += [Factor(self.width, term, n > 0) for n, term in enumerate(rows)]
            self.width += step.widths[0]
        if others:
            terms = [Term(self._alone(t.source), t.part, t.transposed) for t in others]
            self.left[first] = self._add(Product(tuple(terms)))

    def _split(self, ref: Ref) -> tuple[Ref | None, Ref | None]:
        """What a reference names now: columns of a value, and columns of the table to add."""
        if ref.key == _SEQUENCE:
            raise GraphoptError("the step reads the rows themselves too")
        if ref.kind != "t":
            return ref, None
        value, table = None, None
        if ref.index in self.left:
            value = Ref("t", self.left[ref.index], ref.start, ref.width)
        if ref.index in self.columns:
            table = Ref("x", 0, self.columns[ref.index] + ref.start, ref.width)
        return value, table

    def _alone(self, ref: Ref) -> Ref:
        """One reference for both; a kernel of its own adds them up where there are two."""
        value, table = self._split(ref)
        if value is None or table is None:
            found = table if value is None else value
            assert found is not None
            return found
        build = Builder(self.spec.dtype, 2, 0)
        operand = Operand(self.spec.dtype, (0, 1))
        total = build("add", build.input(operand), build.input(operand))
        summed = Map(build.build([(total, operand)]), (value, table), (ref.width,))
        return Ref("t", self._add(summed), 0, ref.width)

    def _map(self, first: int, step: Map) -> None:
        sources: list[Ref] = []
        more: list[tuple[int, Ref]] = []  # inputs that columns of the table are added to
        for number, ref in enumerate(step.sources):
            value, table = self._split(ref)
            if value is not None and table is not None:
                more.append((number, table))
            sources.append(value or table or ref)
        kernel = _with_sums(step.kernel, [number for number, _ in more]) if more else step.kernel
        sources += [table for _, table in more]
        made = self._add(Map(kernel, tuple(sources), step.widths))
        self.left |= {first + n: made + n for n in range(len(step.widths))}


def _with_sums(kernel: KernelSpec, inputs: list[int]) -> KernelSpec:
    """The kernel with further inputs, each added to one of ``inputs`` before that is used."""
    build = Builder.like(kernel)
    values: list[Arg] = [build.input(operand) for operand in kernel.inputs]
    more = [build.input(kernel.inputs[number]) for number in inputs]
    for number, other in zip(inputs, more, strict=True):
        values[number] = build("add", values[number], other)
    for step in kernel.body:
        args = [values[arg] if isinstance(arg, int) else arg for arg in step.args]
        values.append(build(step.op, *args))
    return build.build([(values[result.value], result.operand) for result in kernel.outputs])
