"""RecurrenceSpec -> the program of a forward step."""

from __future__ import annotations

from functools import lru_cache

from graphopt.kernels.recurrence.plan import Plan, plan
from graphopt.kernels.recurrence.program import (
    COPY,
    FIXED,
    IN_SEQUENCE,
    KERNEL,
    NEXT,
    PREVIOUS,
    PRODUCT,
    SEQUENCE,
    STASH,
    VECTOR,
    Program,
    View,
    inputs_of,
    outputs_of,
    shifted,
)
from graphopt.kernels.recurrence.scaled import divided, read_by_kernels
from graphopt.kernels.recurrence.spec import Map, Product, RecurrenceSpec, Ref


@lru_cache(maxsize=256)
def forward(spec: RecurrenceSpec, *, training: bool, times: int = 1) -> Program:
    """The program of a forward step.

    Args:
        spec: the recurrence.
        training: there will be a backward.
        times: a power of two that products come multiplied by where kernels can divide by it.
    """
    agreed = plan(spec, training=training)
    program = Program(
        spec,
        False,
        agreed.stash_width,
        agreed.stash_unit,
        inputs_of(spec) + outputs_of(spec),
        list(agreed.homes),
    )
    where = _Forward(program, agreed, times)
    for first, step in spec.numbered():
        if isinstance(step, Product):
            where.product(first, step)
        else:
            where.map(first, step)
    where.leave()
    return program


class _Forward:
    def __init__(self, program: Program, agreed: Plan, times: int) -> None:
        self.program, self.spec, self.agreed = program, program.spec, agreed
        self.times = times
        self.scaled = read_by_kernels(self.spec, agreed.value_at.keys())
        self.at: dict[int, View] = dict(agreed.value_at)

    def value(self, number: int) -> View:
        if number not in self.at:
            self.at[number] = self.program.new_scratch(self.spec.values[number])
        return self.at[number]

    def view(self, ref: Ref) -> View:
        if ref.kind == "t":
            return shifted(self.value(ref.index), ref.start)
        place = {"x": SEQUENCE, "s": PREVIOUS, "v": VECTOR}[ref.kind]
        return (place, ref.index, ref.start)

    def product(self, first: int, step: Product) -> None:
        # Those with sequences come first: they may be computed for many steps at once.
        terms = sorted(step.terms, key=lambda term: term.source.kind != "x")
        for n, term in enumerate(terms):
            times = self.times if first in self.scaled else 1
            pack = self.program.pack(term.part, transposed=not term.transposed, times=times)
            self.program.add(
                PRODUCT,
                [self.value(first), self.view(term.source)],
                term.width,
                which=pack,
                depth=term.source.width,
                adds=n > 0,
            )

    def map(self, first: int, step: Map) -> None:
        kernel = divided(step, self.scaled, self.agreed.maps[first][0], self.times)
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
