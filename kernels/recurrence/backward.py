"""RecurrenceSpec -> the program of a backward step.

Backward goes through the steps in reverse order. Everything that has a gradient gets
*contributions* to it; a first, dry round finds out who contributes what, so that in the second the
first contribution is written and only later ones are added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from graphopt.kernels.recurrence.plan import Plan, copies_of, heads_of, is_read, plan
from graphopt.kernels.recurrence.program import (
    ADD,
    CARRY_IN,
    CARRY_OUT,
    COPY,
    KERNEL,
    OUTER,
    PREVIOUS,
    PRODUCT,
    SEQUENCE,
    STASH,
    VECTOR,
    VECTOR_SUM,
    ZERO,
    Program,
    View,
    inputs_of,
    outputs_of,
    shifted,
)
from graphopt.kernels.recurrence.spec import Map, Product, RecurrenceSpec, Ref, Term
from graphopt.kernels.spec import KernelSpec


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
        outputs = [(kind, k, width, False) for kind, k, width, _ in outputs_of(spec)]
        gradients = [("gradient", i, width, True) for i, width in enumerate(spec.sequences)]
        self.program = Program(
            spec,
            True,
            agreed.stash_width,
            agreed.stash_unit,
            inputs_of(spec) + outputs + heads + gradients,
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
        return shifted(sink.view, ref.start), must_add

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
            return shifted(self.agreed.value_at[ref.index], ref.start)
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
        copies = copies_of(self.spec, step, first)
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
            for place, index, _ in heads_of(self.spec, value):
                if place == SEQUENCE:
                    index = self.program.sequence("head", -1 - index)
                found.append((place, index, 0))
            if is_read(self.spec, value):
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
