"""Spec with columns -> Python source of a CPU kernel.

Where axes come behind those that are reduced, neighbouring rows lie side by side: element ``i`` of
row ``j`` is next to that of row ``j + 1``. So a kernel computes ``m`` rows together, and vectors go
across them::

    kernel(pointers, strides, m, n, scratch)

``pointers`` has the address of each operand, inputs first, ``strides`` how many elements lie
between two elements of a row (0 where it is broadcast or summed along rows). Values of which each
row has one, such as its sum by now, wait in memory, ``m`` of them side by side. Outputs that are
summed over are added to.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.kernels.emit.cpu import ITEM_SIZE, storage
from graphopt.kernels.emit.schedule import Loop, schedule
from graphopt.kernels.emit.source import START, Source
from graphopt.kernels.spec import KernelSpec

#: So many elements are added up before their sum is: of more, too much would be rounded away.
_SUMMED_TOGETHER = 256


def emit_columns(spec: KernelSpec) -> tuple[str, list[str]]:
    """Source of the function ``kernel``, and the names of what waits in memory.

    Behind the scratch rows of the schedule, of ``n * m`` elements each, it needs ``m`` elements for
    each of these. They are read and written by functions ``load_`` and ``store_`` of that name.

    Args:
        spec: expanded and collapsed (:mod:`graphopt.kernels.expand`), with columns.
    """
    emitter = _Emitter(spec, schedule(spec))
    return emitter.source(), list(emitter.waiting)


class _Emitter(Source):
    @property
    def waiting(self) -> list[str]:
        """Values that rows have one of, but not all the same, and what sums were before."""
        numbers = [
            number
            for number in range(self.first, self.first + len(self.spec.body))
            if self._is_across(number) and not self._is_down(number)
        ]
        sums = [n for n in numbers if self.spec.body[n - self.first].op == "reduce_sum"]
        return [f"row{number}" for number in numbers] + [f"before{number}" for number in sums]

    def source(self) -> str:
        body = self._capture(self._walks)
        size = ITEM_SIZE[self.spec.dtype]
        head = ["def kernel(pointers, strides, m, n, scratch):"]
        for number, dtype in enumerate(storage(self.spec)):
            head.append(f"    at{number} = pointers[{number}]")
            head.append(f"    step{number} = strides[{number}] * {ITEM_SIZE[dtype]}")
        slots = self.plan.scratch.values()
        head += [f"    keep{slot} = scratch + {slot} * n * m * {size}" for slot in slots]
        kept = len(self.plan.scratch)
        for place, name in enumerate(self.waiting):
            head.append(f"    {name} = scratch + ({kept} * n + {place}) * m * {size}")
        head += [f"    {name} = number({value})" for value, name in self.literals.items()]
        head += ["    length = number(n)", "    width = number(m)"]
        return "\n".join([*head, *body, ""])

    # -- what a value varies along -------------------------------------------------------------

    def _is_down(self, number: int) -> bool:
        return self.row_axis in self.spec.varies[number]

    def _is_across(self, number: int) -> bool:
        return self.spec.rank - 1 in self.spec.varies[number]

    def _source_of(self, reduction: int) -> int:
        (source,) = self.spec.body[reduction - self.first].args
        assert isinstance(source, int)
        return source

    def _args(self, numbers: Iterable[int]) -> set[int]:
        """What values of the body are computed from."""
        steps = (self.spec.body[n - self.first] for n in numbers if n >= self.first)
        return {arg for step in steps for arg in step.args if isinstance(arg, int)}

    # -- values of rows ------------------------------------------------------------------------

    def _row_values(self, values: list[int]) -> None:
        across = [n for n in values if self._is_across(n) and n >= self.first]
        for number in values:
            if not self._is_across(number):
                self._compute(1, number, "at")
        if not across:
            return
        self._line(1, "for j in range(m):")
        self._fetch(2, self._args(across), across)
        for number in across:
            self._compute(2, number, "at")
            self._line(2, f"store_row{number}(row{number}, j, v{number})")

    def _fetch(self, indent: int, wanted: Iterable[int], computed: Iterable[int]) -> None:
        """Read values of rows that were computed before."""
        for number in sorted(set(wanted) - set(computed)):
            if self._is_down(number) or not self._is_across(number):
                continue
            if number < self.first:
                self._compute(indent, number, "at")
            else:
                self._line(indent, f"v{number} = load_row{number}(row{number}, j)")

    def _compute(self, indent: int, number: int, base: str) -> None:
        if number < self.first:
            index = "j" if self._is_across(number) else "0"
            self._line(indent, f"v{number} = load{number}({base}{number}, {index})")
            return
        step = self.spec.body[number - self.first]
        args = [self._arg(arg) for arg in step.args]
        self._line(indent, f"v{number} = {self._expression(step.op, args)}")

    def _store_row(self, place: int) -> None:
        """An output that rows have one of, or that is the sum of these."""
        result = self.spec.outputs[place]
        summed = self.spec.summed(result)
        value, is_across = f"v{result.value}", self._is_across(result.value)
        if self.spec.rank - 1 not in result.operand.covers and not is_across:
            value += " * width" if self.spec.rank - 1 in summed else ""
            self._line(1, self._store(place, "0", value, adds=bool(summed)))
            return
        is_sum = self.spec.rank - 1 not in result.operand.covers
        if is_sum:
            self._line(1, f"sum{place} = number(0.0)")
        self._line(1, "for j in range(m):")
        self._fetch(2, [result.value], [])
        if is_sum:
            self._line(2, f"sum{place} = reduce_sum(sum{place}, {value})")
            self._line(1, self._store(place, "0", f"sum{place}", adds=True))
        else:
            self._line(2, self._store(place, "j", value, adds=bool(summed)))

    # -- walks along rows ----------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        across = [n for n in loop.reductions if self._is_across(self._source_of(n))]
        if across:
            self._line(1, "for j in range(m):")
            for number in across:
                start = START[self.spec.body[number - self.first].op]
                self._line(2, f"store_row{number}(row{number}, j, number({start}))")
        sums = [n for n in across if self.spec.body[n - self.first].op == "reduce_sum"]
        if sums:
            self._line(1, f"if n > {_SUMMED_TOGETHER}:")
            self._line(2, "for j in range(m):")
            for number in sums:
                self._line(3, f"store_before{number}(before{number}, j, number(0.0))")
        for number in loop.reductions:
            if number not in across:
                start = START[self.spec.body[number - self.first].op]
                self._line(1, f"v{number} = number({start})")
        if not (loop.values or loop.reads or loop.stores):
            return
        self._line(1, "for i in range(n):")
        stored = [self.first + place for place in loop.stores]
        for number in (*(n for n in loop.values if n < self.first), *stored):
            self._line(2, f"line{number} = at{number} + i * step{number}")
        size = ITEM_SIZE[self.spec.dtype]
        for number in (*loop.reads, *loop.keeps):
            slot = self.plan.scratch[number]
            self._line(2, f"kept{slot} = keep{slot} + i * m * {size}")
        self._once(loop)
        self._across(loop, across)
        if sums:
            self._line(2, f"if n > {_SUMMED_TOGETHER} and (i + 1) % {_SUMMED_TOGETHER} == 0:")
            self._add_before(3, sums, "before", "row")
            self._line(1, f"if n > {_SUMMED_TOGETHER}:")
            self._add_before(2, sums, "row", "before")

    def _add_before(self, indent: int, sums: list[int], to: str, other: str) -> None:
        """Add what sums were before to what they are, or the other way; it is 0 then."""
        self._line(indent, "for j in range(m):")
        for n in sums:
            total = f"load_{to}{n}({to}{n}, j) + load_{other}{n}({other}{n}, j)"
            self._line(indent + 1, f"store_{to}{n}({to}{n}, j, {total})")
            self._line(indent + 1, f"store_{other}{n}({other}{n}, j, number(0.0))")

    def _once(self, loop: Loop) -> None:
        """What is the same for all rows."""
        for number in loop.reads:
            if not self._is_across(number):
                self._line(2, f"v{number} = load_kept(kept{self.plan.scratch[number]}, 0)")
        for number in loop.values:
            if not self._is_across(number):
                self._compute(2, number, "line")
        for number in loop.keeps:
            if not self._is_across(number):
                self._line(2, f"store_kept(kept{self.plan.scratch[number]}, 0, v{number})")
        for number in loop.reductions:
            source = self._source_of(number)
            if not self._is_across(source):
                op = self.spec.body[number - self.first].op
                self._line(2, f"v{number} = {op}(v{number}, v{source})")
        for place in loop.stores:
            result = self.spec.outputs[place]
            if self.spec.rank - 1 in result.operand.covers or self._is_across(result.value):
                continue
            summed = self.spec.summed(result)
            value = f"v{result.value}" + (" * width" if self.spec.rank - 1 in summed else "")
            self._line(2, self._store(place, "0", value, adds=bool(summed), base="line"))

    def _across(self, loop: Loop, reductions: list[int]) -> None:
        """What differs between rows: vectors go this way."""
        last = self.spec.rank - 1
        results = {place: self.spec.outputs[place] for place in loop.stores}
        stores = [place for place, r in results.items() if last in r.operand.covers]
        sums = [p for p, r in results.items() if p not in stores and self._is_across(r.value)]
        values = [n for n in loop.values if self._is_across(n)]
        reads = [n for n in loop.reads if self._is_across(n)]
        if not (values or reads or stores or sums):
            return
        for place in sums:
            self._line(2, f"sum{place} = number(0.0)")
        self._line(2, "for j in range(m):")
        for number in reads:
            self._line(3, f"v{number} = load_kept(kept{self.plan.scratch[number]}, j)")
        wanted = self._args(values) | {results[place].value for place in (*stores, *sums)}
        self._fetch(3, wanted, [*values, *reads])
        for number in values:
            self._compute(3, number, "line")
        for number in loop.keeps:
            if self._is_across(number):
                self._line(3, f"store_kept(kept{self.plan.scratch[number]}, j, v{number})")
        for number in reductions:
            op, source = self.spec.body[number - self.first].op, self._source_of(number)
            now = f"{op}(load_row{number}(row{number}, j), v{source})"
            self._line(3, f"store_row{number}(row{number}, j, {now})")
        for place in sums:
            self._line(3, f"sum{place} = reduce_sum(sum{place}, v{results[place].value})")
        for place in stores:
            adds = bool(self.spec.summed(results[place]))
            value = f"v{results[place].value}"
            self._line(3, self._store(place, "j", value, adds=adds, base="line"))
        for place in sums:
            total = self._store(place, "0", f"sum{place}", adds=True, base="line")
            self._line(2, total)
