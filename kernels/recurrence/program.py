"""RecurrenceSpec -> what the bridge executes step by step, forward and backward, as numbers.

Values of a step live in buffers of the chunk of rows that is being worked on; what backward needs
of them is written to the *stash*, an array with a row per step and sequence. What costs less to
compute again than to write and read back is not stashed: gates are, the tanh of an LSTM's cell is
not.

Backward goes through the steps in reverse order. Everything that has a gradient gets
*contributions* to it; a first, dry round finds out who contributes what, so that in the second the
first contribution is written and only later ones are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from graphopt.kernels.gradient import Gradient, differentiate
from graphopt.kernels.instructions import INSTRUCTIONS, Kind
from graphopt.kernels.recurrence.spec import Map, Part, Product, RecurrenceSpec, Ref, Term
from graphopt.kernels.spec import KernelSpec, Operand, Result

#: Places of operands; kernels/bridge/recurrence.h has the same list.
SEQUENCE, PREVIOUS, NEXT, STASH, SCRATCH, RING, VECTOR, VECTOR_SUM, CARRY_IN, CARRY_OUT = range(10)
#: Codes of instructions.
PRODUCT, KERNEL, COPY, ADD, ZERO, OUTER = range(6)
#: Homes of states.
PING_PONG, IN_STASH, IN_SEQUENCE, FIXED = range(4)

#: Writing an element to memory and reading it back, in the unit of instruction costs.
_STASH_COST = 20.0
#: A value that costs less than this is not worth an output of its own.
_DEAR = 8.0

View = tuple[int, int, int]


@dataclass(frozen=True)
class Code:
    """One instruction: what it is, and the places it writes and reads."""

    code: int
    views: tuple[View, ...]
    width: int
    which: int = 0
    depth: int = 0
    adds: bool = False
    row: int = 0
    column: int = 0

    def numbers(self) -> list[int]:
        """As the bridge reads it."""
        flat = [n for view in self.views for n in view]
        head = [self.code, self.which, self.width, self.depth, int(self.adds), self.row]
        return [*head, self.column, len(self.views), *flat]


@dataclass
class Program:
    """What to do in every step.

    Attributes:
        sequences: of each array with a row per step: what it is (``("input", 0)`` ...), its
            columns, and whether it is written.
        homes: of each state: its columns, where it lies after a step, which sequence, what column.
        kernels: the kernels it calls.
        codes: the instructions.
    """

    spec: RecurrenceSpec
    backward: bool
    stash_width: int
    sequences: list[tuple[str, int, int, bool]]
    homes: list[tuple[int, int, int, int]]
    kernels: list[KernelSpec] = field(default_factory=list)
    packs: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)
    rings: list[int] = field(default_factory=list)
    codes: list[Code] = field(default_factory=list)

    def numbers(self) -> tuple[list[int], list[int]]:
        """As the bridge reads it, what comes before the kernels' addresses and what comes after.

        See ``ReadProgram`` in kernels/bridge/program.cc.
        """
        tables: list[list[tuple[int, ...]]] = [
            [(width, int(written)) for _, _, width, written in self.sequences],
            [*self.homes],
            [*self.spec.matrices],
            [(width,) for width in self.spec.vectors],
            [(width,) for width in self.scratch],
            [(width,) for width in self.rings],
            [*self.packs],
        ]
        found = [int(self.spec.dtype == "float64"), int(self.backward), self.stash_width]
        for table in tables:
            found += [len(table), *(n for row in table for n in row)]
        codes = [len(self.codes), *(n for code in self.codes for n in code.numbers())]
        return found, codes

    def sequence(self, what: str, index: int) -> int:
        """The place in :attr:`sequences` of an array."""
        for at, (kind, number, _, _) in enumerate(self.sequences):
            if (kind, number) == (what, index):
                return at
        raise KeyError((what, index))

    def kernel(self, spec: KernelSpec) -> int:
        """The number of a kernel."""
        if spec not in self.kernels:
            self.kernels.append(spec)
        return self.kernels.index(spec)

    def pack(self, part: Part, *, transposed: bool) -> int:
        """The packed part; ``transposed``: its rows are summed over."""
        depth, width = (part.rows, part.columns) if transposed else (part.columns, part.rows)
        made = (part.matrix, int(transposed), part.row, part.column, depth, width)
        if made not in self.packs:
            self.packs.append(made)
        return self.packs.index(made)

    def new_scratch(self, width: int) -> View:
        """A buffer of one step."""
        self.scratch.append(width)
        return (SCRATCH, len(self.scratch) - 1, 0)

    def new_ring(self, width: int) -> View:
        """A buffer that lives until the gradients of matrices are added up."""
        self.rings.append(width)
        return (RING, len(self.rings) - 1, 0)

    def add(self, code: int, views: Iterable[View], width: int, **more: Any) -> None:
        """Append an instruction."""
        self.codes.append(Code(code, tuple(views), width, **more))


@dataclass(frozen=True)
class Plan:
    """What forward and backward of one recurrence agree on.

    Attributes:
        maps: for each kernel step, by the number of its first value: the forward kernel, which may
            have more outputs than the step has values, and the gradient, or ``None``.
        homes: of each state, as in :class:`Program`.
        value_at: where each value lies after a training step; scratch buffers are left out.
        extra_at: columns of the stash for the further outputs of a kernel step.
        stash_width: columns of the stash.
        reads_outputs: whether backward reads the emitted sequences.
    """

    maps: dict[int, tuple[KernelSpec, Gradient | None]]
    homes: tuple[tuple[int, int, int, int], ...]
    value_at: dict[int, View]
    extra_at: dict[int, tuple[int, ...]]
    stash_width: int

    @property
    def reads_outputs(self) -> bool:
        """Whether a state is kept in an emitted sequence, which backward then reads."""
        return any(home[1] == IN_SEQUENCE for home in self.homes)


def _outputs(spec: RecurrenceSpec) -> list[tuple[str, int, int, bool]]:
    return [("output", k, ref.width, True) for k, ref in enumerate(spec.emit)]


def _inputs(spec: RecurrenceSpec) -> list[tuple[str, int, int, bool]]:
    return [("input", i, width, False) for i, width in enumerate(spec.sequences)]


# -- what forward keeps --------------------------------------------------------------------------


@lru_cache(maxsize=256)
def plan(spec: RecurrenceSpec, *, training: bool) -> Plan:
    """Decide where values lie, and what is kept for backward.

    Args:
        spec: the recurrence.
        training: there will be a backward.
    """
    maps: dict[int, tuple[KernelSpec, Gradient | None]] = {}
    for first, step in spec.numbered():
        if isinstance(step, Map):
            maps[first] = _with_gradient(spec, step, first) if training else (step.kernel, None)
    kept = _kept(spec, maps) if training else set()
    stash = 0
    value_at: dict[int, View] = {}
    homes: list[tuple[int, int, int, int]] = []
    for number, ref in enumerate(spec.next):
        width = spec.states[number]
        if ref == spec.whole("s", number):
            homes.append((width, FIXED, 0, 0))
            continue
        emitted = [k for k, other in enumerate(spec.emit) if other == ref]
        is_value = ref.kind == "t" and ref == spec.whole("t", ref.index)
        if emitted and is_value:
            homes.append((width, IN_SEQUENCE, len(spec.sequences) + emitted[0], 0))
        elif training:
            homes.append((width, IN_STASH, 0, stash))
            stash += width
        else:
            homes.append((width, PING_PONG, 0, 0))
        if is_value:
            value_at.setdefault(ref.index, (NEXT, number, 0))
    for k, ref in enumerate(spec.emit):
        if ref.kind == "t" and ref == spec.whole("t", ref.index) and ref.index not in kept:
            value_at.setdefault(ref.index, (SEQUENCE, len(spec.sequences) + k, 0))
    for number in sorted(kept - value_at.keys()):
        value_at[number] = (STASH, 0, stash)
        stash += spec.values[number]
    extra_at = {}
    for first, (kernel, _) in maps.items():
        places = []
        for result in kernel.outputs[_own(spec, first) :]:
            places.append(stash)
            stash += _columns(spec, first, result.operand)
        extra_at[first] = tuple(places)
    return Plan(maps, tuple(homes), value_at, extra_at, stash)


def _own(spec: RecurrenceSpec, first: int) -> int:
    """How many values the step has whose first value is ``first``."""
    return next(len(step.widths) for number, step in spec.numbered() if number == first)


def _columns(spec: RecurrenceSpec, first: int, operand: Operand) -> int:
    step = next(step for number, step in spec.numbered() if number == first)
    assert isinstance(step, Map)
    return step.width if 1 in operand.covers else 1


def _kept(spec: RecurrenceSpec, maps: dict[int, tuple[KernelSpec, Gradient | None]]) -> set[int]:
    """Values that backward reads: operands of products, and what gradients ask for."""
    kept = set()
    for first, step in spec.numbered():
        if isinstance(step, Product):
            kept |= {ref.index for ref in step.sources if ref.kind == "t"}
            continue
        gradient = maps[first][1]
        if gradient is None:
            continue
        read = [step.sources[n] for n in gradient.inputs]
        kept |= {ref.index for ref in read if ref.kind == "t"}
        kept |= {first + n for n in _real_outputs(spec, step, first, gradient.outputs)}
    return kept


def _real_outputs(spec: RecurrenceSpec, step: Map, first: int, outputs: Sequence[int]) -> list[int]:
    """Of outputs of the differentiated kernel, which are values of the step."""
    copies = _copies(spec, step, first)
    return [copies[n] for n in outputs if n < len(copies)]


def _heads(spec: RecurrenceSpec, value: int) -> list[View]:
    """Gradients that reach a value as a whole from outside of the step."""
    whole = spec.whole("t", value)
    found = [(CARRY_IN, i, 0) for i, ref in enumerate(spec.next) if ref == whole]
    # The number of the array is filled in by the program.
    return found + [(SEQUENCE, -1 - k, 0) for k, ref in enumerate(spec.emit) if ref == whole]


def _is_read(spec: RecurrenceSpec, value: int) -> bool:
    """Whether another step reads a value, or only part of it leaves the step."""
    whole = spec.whole("t", value)
    refs = [ref for _, step in spec.numbered() for ref in step.sources]
    refs += [ref for ref in (*spec.next, *spec.emit) if ref != whole]
    return any(ref.key == ("t", value) for ref in refs)


def _copies(spec: RecurrenceSpec, step: Map, first: int) -> list[int]:
    """For each head of the step's gradient, the output it belongs to.

    A value with several readers outside has as many heads: the kernel adds them up.
    """
    found = []
    for n in range(len(step.widths)):
        count = len(_heads(spec, first + n)) + int(_is_read(spec, first + n))
        found += [n] * count
    return found


def _with_gradient(
    spec: RecurrenceSpec, step: Map, first: int
) -> tuple[KernelSpec, Gradient | None]:
    """The forward kernel with what it has to keep as further outputs, and its gradient."""
    kernel = step.kernel
    dear = [
        number
        for number, found in enumerate(kernel.body, len(kernel.inputs))
        if INSTRUCTIONS[found.op].cost >= _DEAR
        and INSTRUCTIONS[found.op].kind is not Kind.ROW
        and kernel.varies[number] == frozenset({0, 1})
        and all(number != result.value for result in kernel.outputs)
    ]
    extras = [Result(number, Operand(spec.dtype, (0, 1))) for number in dear]
    copies = _copies(spec, step, first)
    if not copies:
        return kernel, None
    heads = [kernel.outputs[n] for n in copies]
    full = replace(kernel, outputs=(*heads, *extras))
    gradient = differentiate(full, len(heads), _STASH_COST)
    if gradient.spec is None:
        return kernel, None
    read = [n - len(heads) for n in gradient.outputs if n >= len(heads)]
    # Only extras that are read become outputs.
    renumber = {len(heads) + old: len(heads) + new for new, old in enumerate(read)}
    outputs = tuple(renumber.get(n, n) for n in gradient.outputs)
    forward = replace(kernel, outputs=(*kernel.outputs, *(extras[n] for n in read)))
    return forward, replace(gradient, outputs=outputs)


# -- forward -------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def forward(spec: RecurrenceSpec, *, training: bool) -> Program:
    """The program of a forward step."""
    agreed = plan(spec, training=training)
    program = Program(
        spec, False, agreed.stash_width, _inputs(spec) + _outputs(spec), list(agreed.homes)
    )
    where = _Forward(program, agreed)
    for first, step in spec.numbered():
        if isinstance(step, Product):
            where.product(first, step)
        else:
            where.map(first, step)
    where.leave()
    return program


class _Forward:
    def __init__(self, program: Program, agreed: Plan) -> None:
        self.program, self.spec, self.agreed = program, program.spec, agreed
        self.at: dict[int, View] = dict(agreed.value_at)

    def value(self, number: int) -> View:
        if number not in self.at:
            self.at[number] = self.program.new_scratch(self.spec.values[number])
        return self.at[number]

    def view(self, ref: Ref) -> View:
        if ref.kind == "t":
            return _shifted(self.value(ref.index), ref.start)
        place = {"x": SEQUENCE, "s": PREVIOUS, "v": VECTOR}[ref.kind]
        return (place, ref.index, ref.start)

    def product(self, first: int, step: Product) -> None:
        # Those with sequences come first: they may be computed for many steps at once.
        terms = sorted(step.terms, key=lambda term: term.source.kind != "x")
        for n, term in enumerate(terms):
            pack = self.program.pack(term.part, transposed=not term.transposed)
            self.program.add(
                PRODUCT,
                [self.value(first), self.view(term.source)],
                term.width,
                which=pack,
                depth=term.source.width,
                adds=n > 0,
            )

    def map(self, first: int, step: Map) -> None:
        kernel = self.agreed.maps[first][0]
        views = [self.view(ref) for ref in step.sources]
        views += [self.value(first + n) for n in range(len(step.widths))]
        views += [(STASH, 0, column) for column in self.agreed.extra_at[first]]
        self.program.add(KERNEL, views, step.width, which=self.program.kernel(kernel))

    def leave(self) -> None:
        """Copy what is not where it has to be yet."""
        spec = self.spec
        for number, ref in enumerate(spec.next):
            target: View = (NEXT, number, 0)
            if self.agreed.homes[number][1] != FIXED and self.view(ref) != target:
                self.program.add(COPY, [target, self.view(ref)], ref.width)
        for k, ref in enumerate(spec.emit):
            place = len(spec.sequences) + k
            source = self.view(ref)
            homes = self.agreed.homes
            if source[0] == NEXT and homes[source[1]][1:3] == (IN_SEQUENCE, place):
                continue
            if source != (SEQUENCE, place, 0):
                self.program.add(COPY, [(SEQUENCE, place, 0), source], ref.width)


def _shifted(view: View, columns: int) -> View:
    return (view[0], view[1], view[2] + columns)


# -- backward ------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def backward(spec: RecurrenceSpec) -> Program:
    """The program of a backward step."""
    agreed = plan(spec, training=True)
    dry = _Backward(spec, agreed, {})
    dry.run()
    wet = _Backward(spec, agreed, {key: sink.ranges for key, sink in dry.sinks.items()})
    wet.run()
    return wet.program


@dataclass
class _Sink:
    """A gradient that is put together from contributions."""

    view: View
    width: int
    expected: list[tuple[int, int, bool]]
    ranges: list[tuple[int, int, bool]] = field(default_factory=list)
    is_begun: bool = False

    @property
    def is_disjoint(self) -> bool:
        """Whether every column is written exactly once."""
        spans = sorted((start, width) for start, width, _ in self.expected)
        at = 0
        for start, width in spans:
            if start != at:
                return False
            at += width
        return at == self.width and not any(adds for _, _, adds in self.expected)

    @property
    def is_alike(self) -> bool:
        """Whether all contributions cover all columns, and the first can be written."""
        whole = all((start, width) == (0, self.width) for start, width, _ in self.expected)
        return bool(self.expected) and whole and not self.expected[0][2]


class _Backward:
    def __init__(
        self,
        spec: RecurrenceSpec,
        agreed: Plan,
        expected: dict[tuple[str, int], list[tuple[int, int, bool]]],
    ) -> None:
        self.spec, self.agreed, self.expected = spec, agreed, expected
        heads = [("head", k, ref.width, False) for k, ref in enumerate(spec.emit)]
        outputs = [(kind, k, width, False) for kind, k, width, _ in _outputs(spec)]
        gradients = [("gradient", i, width, True) for i, width in enumerate(spec.sequences)]
        self.program = Program(
            spec,
            True,
            agreed.stash_width,
            _inputs(spec) + outputs + heads + gradients,
            list(agreed.homes),
        )
        self.sinks: dict[tuple[str, int], _Sink] = {}
        self.products = {first for first, s in spec.numbered() if isinstance(s, Product)}

    def run(self) -> None:
        self._enter()
        for first, step in reversed([*self.spec.numbered()]):
            if isinstance(step, Product):
                self._product(first, step)
            else:
                self._map(first, step)
        for number in range(len(self.spec.states)):
            self._settle(("s", number))
        for number in range(len(self.spec.sequences)):
            self._settle(("x", number))

    # Contributions

    def _sink(self, key: tuple[str, int]) -> _Sink:
        if key not in self.sinks:
            kind, index = key
            width = self.spec.width_of(key)
            if kind == "s":
                view: View = (CARRY_OUT, index, 0)
            elif kind == "x":
                view = (SEQUENCE, self.program.sequence("gradient", index), 0)
            elif index in self.products:
                view = self.program.new_ring(width)
            else:
                view = self.program.new_scratch(width)
            self.sinks[key] = _Sink(view, width, self.expected.get(key, []))
        return self.sinks[key]

    def _target(self, ref: Ref, *, adds: bool) -> tuple[View, bool]:
        """Where to contribute, and whether to add; ``adds``: the contributor can only add."""
        sink = self._sink(ref.key)
        sink.ranges.append((ref.start, ref.width, adds))
        is_first, sink.is_begun = not sink.is_begun, True
        if sink.is_disjoint:
            must_add = False
        elif sink.is_alike:
            must_add = not is_first
        else:
            if is_first:
                self.program.add(ZERO, [sink.view], sink.width)
            must_add = True
        return _shifted(sink.view, ref.start), must_add

    def _contribute(self, ref: Ref, source: View) -> None:
        """Add a gradient that lies somewhere to that of ``ref``."""
        target, adds = self._target(ref, adds=False)
        self.program.add(ADD if adds else COPY, [target, source], ref.width)

    def _settle(self, key: tuple[str, int]) -> None:
        """What nobody contributed to is zero."""
        sink = self._sink(key)
        if not sink.is_begun:
            self.program.add(ZERO, [sink.view], sink.width)

    # Steps

    def _enter(self) -> None:
        """Gradients from the next step and of what was emitted, where no kernel reads them."""
        for number, ref in enumerate(self.spec.next):
            self._arrive(ref, (CARRY_IN, number, 0))
        for k, ref in enumerate(self.spec.emit):
            self._arrive(ref, (SEQUENCE, self.program.sequence("head", k), 0))

    def _arrive(self, ref: Ref, source: View) -> None:
        whole = ref.kind == "t" and ref == self.spec.whole("t", ref.index)
        if not whole or ref.index in self.products:
            self._contribute(ref, source)

    def _forward_view(self, ref: Ref) -> View:
        if ref.kind == "t":
            return _shifted(self.agreed.value_at[ref.index], ref.start)
        place = {"x": SEQUENCE, "s": PREVIOUS, "v": VECTOR}[ref.kind]
        return (place, ref.index, ref.start)

    def _product(self, first: int, step: Product) -> None:
        sink = self.sinks.get(("t", first))
        if sink is None:
            return  # nothing depends on it
        # The bridge executes products of the same gradient that follow each other as one.
        targets = [self._target(term.source, adds=False) for term in step.terms]
        for term, (target, adds) in zip(step.terms, targets, strict=True):
            self._term(term, sink.view, target, adds=adds)
        for term in step.terms:
            self._outer(term, sink.view)

    def _term(self, term: Term, gradient: View, target: View, *, adds: bool) -> None:
        part, source = term.part, term.source
        self.program.add(
            PRODUCT,
            [target, gradient],
            source.width,
            which=self.program.pack(part, transposed=term.transposed),
            depth=term.width,
            adds=adds,
        )

    def _outer(self, term: Term, gradient: View) -> None:
        part = term.part
        pair = [gradient, self._forward_view(term.source)]
        self.program.add(
            OUTER,
            pair if term.transposed else pair[::-1],
            part.rows,
            which=part.matrix,
            depth=part.columns,
            row=part.row,
            column=part.column,
        )

    def _map(self, first: int, step: Map) -> None:
        gradient = self.agreed.maps[first][1]
        if gradient is None or gradient.spec is None:
            return
        copies = _copies(self.spec, step, first)
        heads = self._head_views(step, first)
        views = [heads[n] for n in gradient.heads]
        views += [self._forward_view(step.sources[n]) for n in gradient.inputs]
        for n in gradient.outputs:
            if n < len(copies):
                views.append(self._forward_view(self.spec.whole("t", first + copies[n])))
            else:
                views.append((STASH, 0, self.agreed.extra_at[first][n - len(copies)]))
        later: list[tuple[View, View, int]] = []
        for place, n in enumerate(gradient.wrt):
            views.append(self._gradient_view(step, n, gradient.spec, place, later))
        self.program.add(KERNEL, views, step.width, which=self.program.kernel(gradient.spec))
        for target, source, width in later:
            self.program.add(ADD, [target, source], width)

    def _head_views(self, step: Map, first: int) -> list[View]:
        found: list[View] = []
        for n in range(len(step.widths)):
            value = first + n
            for place, index, _ in _heads(self.spec, value):
                if place == SEQUENCE:
                    index = self.program.sequence("head", -1 - index)
                found.append((place, index, 0))
            if _is_read(self.spec, value):
                self._settle(("t", value))
                found.append(self.sinks["t", value].view)
        return found

    def _gradient_view(
        self,
        step: Map,
        number: int,
        kernel: KernelSpec,
        place: int,
        later: list[tuple[View, View, int]],
    ) -> View:
        """Where the kernel writes the gradient of one of the step's sources."""
        ref = step.sources[number]
        if ref.kind == "v":
            return (VECTOR_SUM, ref.index, ref.start)
        sums = bool(kernel.summed(kernel.outputs[place]))
        target, adds = self._target(ref, adds=sums)
        if not adds or sums:
            return target
        own = self.program.new_scratch(ref.width)
        later.append((target, own, ref.width))
        return own
