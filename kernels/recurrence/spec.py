"""RecurrenceSpec: what one step of a recurrence computes, as a value that prints and parses back.

A step reads its row of every *sequence* (``x``) and the *states* (``s``) that the step before left;
it multiplies with *matrices* (``m``), and reads *vectors* (``v``), which are the same in all steps
and for the whole batch. It computes *values* (``t``): products, and kernels over what was computed
before. At the end it names the next states and what it emits. An LSTM layer of 100 units::

    recurrence f32 (32) (100, 100) (400x32, 400x100) (400) ;;
    400 = x0 @ m0' + s0 @ m1' ;;
    100, 100 = t0[0:100] ... s1 -> f32[a,b] (f32[a,b], ...) { ... } ;;
    next t1, t2 ;; emit t1

Rows of the batch do not depend on each other. Batch size and number of steps are not part of the
spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from graphopt.cached import cached_property
from graphopt.errors import ParseError
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse as parse_kernel

#: What a reference may name: a sequence, a state, a vector or a computed value.
KINDS = ("x", "s", "v", "t")


@dataclass(frozen=True, slots=True)
class Ref:
    """Some adjacent columns of a sequence, state, vector or value."""

    kind: str
    index: int
    start: int
    width: int

    @property
    def key(self) -> tuple[str, int]:
        """What it is a part of."""
        return self.kind, self.index

    @property
    def end(self) -> int:
        """The column behind its last."""
        return self.start + self.width

    def part(self, start: int, width: int) -> Ref:
        """Columns of this reference."""
        return Ref(self.kind, self.index, self.start + start, width)


@dataclass(frozen=True, slots=True)
class Part:
    """A rectangle of a matrix, as it lies in memory."""

    matrix: int
    row: int
    column: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Term:
    """A product: of ``source`` with the part, transposed if ``transposed`` (``x @ m'``)."""

    source: Ref
    part: Part
    transposed: bool

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.part.rows if self.transposed else self.part.columns


@dataclass(frozen=True, slots=True)
class Product:
    """A value: the sum of products."""

    terms: tuple[Term, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the one value it computes."""
        return (self.terms[0].width,)

    @property
    def sources(self) -> tuple[Ref, ...]:
        """What it reads, matrices aside."""
        return tuple(term.source for term in self.terms)


@dataclass(frozen=True, slots=True)
class Map:
    """Values that a kernel computes from ``sources``, one per output of ``kernel``.

    The kernel's space has two axes, the rows of the batch and ``width`` columns.
    """

    kernel: KernelSpec
    sources: tuple[Ref, ...]
    widths: tuple[int, ...]

    @property
    def width(self) -> int:
        """Columns of the kernel's space."""
        return max(ref.width for ref in self.sources)


Step = Product | Map


@dataclass(frozen=True)
class RecurrenceSpec:
    """One step of a recurrence.

    Attributes:
        dtype: of everything, ``float32`` or ``float64``.
        sequences: columns of each sequence.
        states: columns of each state.
        matrices: rows and columns of each matrix.
        vectors: columns of each vector.
        steps: what is computed, in order.
        next: the states after the step.
        emit: what the step adds to the output sequences.
    """

    dtype: str
    sequences: tuple[int, ...]
    states: tuple[int, ...]
    matrices: tuple[tuple[int, int], ...]
    vectors: tuple[int, ...]
    steps: tuple[Step, ...]
    next: tuple[Ref, ...]
    emit: tuple[Ref, ...]

    def __post_init__(self) -> None:
        """Check that it makes sense.

        Raises:
            ParseError: it does not; the message names the part.
        """
        _check(self)

    @cached_property
    def values(self) -> tuple[int, ...]:
        """Columns of each computed value."""
        return tuple(width for step in self.steps for width in step.widths)

    def width_of(self, key: tuple[str, int]) -> int:
        """Columns of a sequence, state, vector or value."""
        return self._tables[key[0]][key[1]]

    def whole(self, kind: str, index: int) -> Ref:
        """All columns of it."""
        return Ref(kind, index, 0, self._tables[kind][index])

    def numbered(self) -> Iterator[tuple[int, Step]]:
        """Steps, each with the number of its first value."""
        first = 0
        for step in self.steps:
            yield first, step
            first += len(step.widths)

    @cached_property
    def _tables(self) -> dict[str, tuple[int, ...]]:
        return {"x": self.sequences, "s": self.states, "v": self.vectors, "t": self.values}

    def __str__(self) -> str:
        """The text form; :func:`parse` reads it."""
        short = {"float32": "f32", "float64": "f64"}[self.dtype]
        tables = (
            self.sequences,
            self.states,
            [f"{rows}x{columns}" for rows, columns in self.matrices],
            self.vectors,
        )
        head = " ".join(f"({', '.join(map(str, table))})" for table in tables)
        lines = [f"recurrence {short} {head}", *(self._print_step(step) for step in self.steps)]
        lines.append(f"next {', '.join(map(self._print_ref, self.next))}".rstrip())
        lines.append(f"emit {', '.join(map(self._print_ref, self.emit))}".rstrip())
        return " ;; ".join(lines)

    def _print_ref(self, ref: Ref) -> str:
        name = f"{ref.kind}{ref.index}"
        if ref == self.whole(ref.kind, ref.index):
            return name
        return f"{name}[{ref.start}:{ref.end}]"

    def _print_step(self, step: Step) -> str:
        widths = ", ".join(map(str, step.widths))
        if isinstance(step, Map):
            sources = " ".join(map(self._print_ref, step.sources))
            return f"{widths} = {sources} -> {step.kernel}"
        terms = [
            f"{self._print_ref(term.source)} @ {self._print_part(term.part)}"
            + ("'" if term.transposed else "")
            for term in step.terms
        ]
        return f"{widths} = {' + '.join(terms)}"

    def _print_part(self, part: Part) -> str:
        name = f"m{part.matrix}"
        if (part.row, part.column) == (0, 0) and (part.rows, part.columns) == self.matrices[
            part.matrix
        ]:
            return name
        rows = f"{part.row}:{part.row + part.rows}"
        return f"{name}[{rows},{part.column}:{part.column + part.columns}]"


def _check(spec: RecurrenceSpec) -> None:
    if spec.dtype not in ("float32", "float64"):
        raise ParseError(f"a recurrence cannot compute in {spec.dtype}")
    if len(spec.next) != len(spec.states):
        raise ParseError(f"{len(spec.next)} next states for {len(spec.states)} states")
    known = 0
    for step in spec.steps:
        for ref in step.sources:
            _check_ref(spec, ref, known)
        if isinstance(step, Product):
            _check_product(spec, step)
        else:
            _check_map(spec, step)
        known += len(step.widths)
    for ref in (*spec.next, *spec.emit):
        _check_ref(spec, ref, known)
        if ref.kind == "v":
            raise ParseError("a recurrence cannot hand on a vector")
    for ref, width in zip(spec.next, spec.states, strict=True):
        if ref.width != width:
            raise ParseError(f"a state of {width} columns cannot become {ref}")


def _check_ref(spec: RecurrenceSpec, ref: Ref, known: int) -> None:
    if ref.kind not in KINDS:
        raise ParseError(f"{ref.kind!r} is none of {', '.join(KINDS)}")
    count = known if ref.kind == "t" else len(spec._tables[ref.kind])
    if not 0 <= ref.index < count:
        raise ParseError(f"{ref.kind}{ref.index} is not known where it is read")
    if not (ref.start >= 0 and ref.width > 0 and ref.end <= spec.width_of(ref.key)):
        raise ParseError(f"{ref.kind}{ref.index} has no columns {ref.start}:{ref.end}")


def _check_product(spec: RecurrenceSpec, step: Product) -> None:
    for term in step.terms:
        part = term.part
        if not 0 <= part.matrix < len(spec.matrices):
            raise ParseError(f"there is no matrix m{part.matrix}")
        rows, columns = spec.matrices[part.matrix]
        if part.row + part.rows > rows or part.column + part.columns > columns:
            raise ParseError(f"m{part.matrix} of {rows}x{columns} has no such part: {part}")
        depth = part.columns if term.transposed else part.rows
        if depth != term.source.width or term.width != step.widths[0]:
            raise ParseError(f"{term.source} does not fit {part}")
        if term.source.kind == "v":
            raise ParseError("a product with a vector is the same in all steps: compute it before")


def _check_map(spec: RecurrenceSpec, step: Map) -> None:
    kernel = step.kernel
    if kernel.rank != 2 or kernel.dtype != spec.dtype:
        raise ParseError(f"a step's kernel has two axes and computes in {spec.dtype}: {kernel}")
    if len(step.sources) != len(kernel.inputs) or len(step.widths) != len(kernel.outputs):
        raise ParseError(f"a step's operands do not fit its kernel: {kernel}")
    pairs = [*zip(step.sources, kernel.inputs, strict=True)]
    for ref, operand in pairs:
        if ref.width != (step.width if 1 in operand.covers else 1):
            raise ParseError(f"{ref} has other columns than {operand} in {kernel}")
        if (ref.kind == "v") == (0 in operand.covers):
            raise ParseError(f"{ref} and {operand} disagree on whether rows are alike")
    for width, result in zip(step.widths, kernel.outputs, strict=True):
        if 0 not in result.operand.covers:
            raise ParseError(f"{kernel} sums over the batch")
        if width != (step.width if 1 in result.operand.covers else 1):
            raise ParseError(f"an output of {kernel} does not have {width} columns")


_HEAD = re.compile(r"recurrence (f32|f64) \(([^)]*)\) \(([^)]*)\) \(([^)]*)\) \(([^)]*)\)")
_REF = re.compile(r"([xsvt])(\d+)(?:\[(\d+):(\d+)\])?")
_PART = re.compile(r"m(\d+)(?:\[(\d+):(\d+),(\d+):(\d+)\])?('?)")


@lru_cache(maxsize=256)
def parse(text: str) -> RecurrenceSpec:
    """The inverse of ``str(spec)``.

    Raises:
        ParseError: the text is no spec; the message names the part.
    """
    try:
        return _parse(text)
    except (ValueError, IndexError) as error:
        raise ParseError(f"{text[:60]!r} is no recurrence: {error}") from None


def _parse(text: str) -> RecurrenceSpec:
    head, *steps = (part.strip() for part in text.split(";;"))
    match = _HEAD.fullmatch(head)
    if match is None or len(steps) < 2:
        raise ParseError(f"{text[:60]!r} is no recurrence")
    reader = _Reader(match)
    made = tuple(reader.step(step) for step in steps[:-2])
    return RecurrenceSpec(
        {"f32": "float32", "f64": "float64"}[match[1]],
        reader.tables["x"],
        reader.tables["s"],
        reader.matrices,
        reader.tables["v"],
        made,
        reader.refs(steps[-2], "next"),
        reader.refs(steps[-1], "emit"),
    )


class _Reader:
    def __init__(self, head: re.Match[str]) -> None:
        def numbers(text: str) -> tuple[int, ...]:
            return tuple(int(part) for part in text.split(",") if part.strip())

        self.tables: dict[str, tuple[int, ...]] = {
            "x": numbers(head[2]),
            "s": numbers(head[3]),
            "v": numbers(head[5]),
            "t": (),
        }
        sizes = [part.strip().split("x") for part in head[4].split(",") if part.strip()]
        self.matrices = tuple((int(rows), int(columns)) for rows, columns in sizes)

    def step(self, text: str) -> Step:
        widths, _, right = text.partition(" = ")
        if "->" in right:
            sources, _, kernel = right.partition(" -> ")
            made: Step = Map(
                parse_kernel(kernel),
                tuple(map(self.ref, sources.split())),
                tuple(int(width) for width in widths.split(",")),
            )
        else:
            made = Product(tuple(map(self._term, right.split(" + "))))
        self.tables["t"] += made.widths
        return made

    def refs(self, text: str, word: str) -> tuple[Ref, ...]:
        found, _, rest = text.partition(" ")
        if found != word:
            raise ParseError(f"a recurrence ends with its {word}, not {text!r}")
        return tuple(self.ref(part.strip()) for part in rest.split(",") if part.strip())

    def ref(self, text: str) -> Ref:
        match = _REF.fullmatch(text)
        if match is None or int(match[2]) >= len(self.tables[match[1]]):
            raise ParseError(f"{text!r} is nothing a recurrence can read")
        kind, index = match[1], int(match[2])
        if match[3] is None:
            return Ref(kind, index, 0, self.tables[kind][index])
        return Ref(kind, index, int(match[3]), int(match[4]) - int(match[3]))

    def _term(self, text: str) -> Term:
        source, _, part = text.partition(" @ ")
        match = _PART.fullmatch(part)
        if match is None or int(match[1]) >= len(self.matrices):
            raise ParseError(f"{text!r} is no product of a recurrence")
        index = int(match[1])
        rows, columns = self.matrices[index]
        where = [int(n) for n in match.groups()[1:5] if n is not None] or [0, rows, 0, columns]
        size = (where[1] - where[0], where[3] - where[2])
        return Term(self.ref(source), Part(index, where[0], where[2], *size), bool(match[6]))
