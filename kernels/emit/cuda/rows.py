"""CUDA kernels whose teams walk rows, with reductions along them and sums over them."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.kernels.emit.cuda.emitter import Emitter, Form, in_registers, parts
from graphopt.kernels.emit.schedule import Loop, schedule
from graphopt.kernels.emit.source import START
from graphopt.kernels.spec import KernelSpec

#: Values that the warps of a block tell each other before they take the same shared memory again.
EXCHANGES = 16


class Rows(Emitter):
    """Walks rows, each a team's."""

    def __init__(self, spec: KernelSpec, form: Form) -> None:
        super().__init__(spec, form)
        self.chunks, self.block, self.full = form.chunks, form.block, form.full
        self.plan = schedule(spec, keeps=False)
        self.held: set[int] = set()  # values of the row that are in registers
        self.exchanges: list[list[int]] = []  # places of values that warps told each other at once

    def source(self) -> str:
        """The kernel's, and of the functions over warps that it calls."""
        used = {step.op for step in self.spec.body if step.op in START} | {"reduce_sum"}
        kernel = self._assembled(["slots", "per", "segments", "reach"], self._teams)
        return "\n\n".join([*(_warp_function(op) for op in sorted(used)), kernel])

    def _teams(self) -> None:
        self._line(1, f"n = e{self.row_axis}")
        outer = " * ".join(f"e{axis}" for axis in range(self.row_axis))
        self._line(1, f"m = {outer or '1'}")
        self._line(1, "length = number(n)")
        self._line(1, "team = team_number()")
        self._line(1, "slot = quotient(team, segments)")
        self._line(1, "segment = team - slot * segments")
        self._line(1, "begin = segment * reach")
        self._line(1, "end = begin + reach if begin + reach < n else n")
        self._line(1, "part = number(end - begin)")
        self._line(1, "lane = lane_number()")
        self._line(1, "lanes = lane_count()")
        if self.block:
            self._line(1, "kept = shared_by_warps()")
            self._line(1, "warp = lane >> 5")
            self._line(1, "warps = lanes >> 5")
            self._line(1, "lane_of_warp = lane & 31")
        for c in range(self.chunks):
            self._line(1, f"j{c} = begin + (lane + {c} * lanes) * {self.width}")
            if not self.full:
                self._line(1, f"active{c} = j{c} < end")
        for place in self._summed():
            number = self.first + place
            self._line(1, f"base{number} = {self._part(place)}")
            if in_registers(self.spec, place, self.chunks):
                for name in self._sums(place):
                    self._line(1, f"{name} = number(0.0)")
        # Teams are whole warps: none of their threads skips a shuffle that others wait in.
        self._line(1, "if slot < slots:")
        self._line(2, "r = slot * per")
        self._line(2, "last = r + per if r + per < m else m")
        self._line(2, "while r < last:")
        self._row()
        if self.exchanges and set(self.exchanges[0]) & set(self.exchanges[-1]):
            # The next row begins with places that this one ended with.
            self._line(3, "cuda.syncthreads()")
        self._line(3, "r += 1")
        for place in self._summed():
            if in_registers(self.spec, place, self.chunks):
                self._store_sums(place)

    def _summed(self) -> list[int]:
        return [p for p, result in enumerate(self.spec.outputs) if self.spec.summed(result)]

    def _part(self, place: int) -> str:
        """Where the part of a summed output begins that this team adds to."""
        by_slot, by_segment = parts(self.spec, place)
        index = {
            (False, False): "0",
            (False, True): "segment",
            (True, False): "slot",
            (True, True): "team",
        }[by_slot, by_segment]
        covers = sorted(self.spec.outputs[place].operand.covers)
        return " * ".join([index, *(f"e{axis}" for axis in covers)])

    def _sums(self, place: int) -> list[str]:
        """Registers with the part of a summed output that this thread holds."""
        if self.row_axis not in self.spec.outputs[place].operand.covers:
            return [f"sum{place}"]
        return [f"sum{place}_{k}" for k in range(self.chunks * self.width)]

    def _store_sums(self, place: int) -> None:
        number = self.first + place
        result = self.spec.outputs[place]
        if self.row_axis in result.operand.covers:
            for c in range(self.chunks):
                inside = self._where_active(2, c)
                names = [f"sum{place}{s}" for s in self._suffixes(c)]
                self._store(inside, place, f"base{number} + j{c}", names)
            return
        if self.plan_kind(place) == "sum":
            self._combine(2, [(f"sum{place}", "reduce_sum")])
        self._line(2, "if lane == 0:")
        self._store(3, place, f"base{number}", [f"sum{place}"])

    def plan_kind(self, place: int) -> str:
        """How an output is stored: per element, per row, or as the sum of a row."""
        if place in self.plan.row_stores:
            return "row"
        summing = any(place in loop.sums for loop in self.plan.loops)
        return "sum" if summing else "element"

    def _suffixes(self, chunk: int) -> list[str]:
        return [f"_{chunk * self.width + k}" for k in range(self.width)]

    def _row(self) -> None:
        self._split(3, "r", self.row_axis)
        for number in range(len(self.operands)):
            self._line(3, f"at{number} = {self._offset(number, self.row_axis)}")
        for place in self._summed():
            number = self.first + place
            self._line(3, f"at{number} = base{number} + at{number}")
        self.held = set()
        for at, loop in enumerate(self.plan.loops):
            self._row_values(3, self.plan.before[at])
            if self.chunks:
                self._registers(loop)
            else:
                self._walk(loop)
        for values in self.plan.before[len(self.plan.loops) :]:
            self._row_values(3, values)
        for place in self.plan.row_stores:
            self._store_row(place)

    def _starts(self, loop: Loop) -> None:
        for number in loop.reductions:
            op = self.spec.body[number - self.first].op
            self._line(3, f"v{number} = number({START[op]})")
        for place in loop.sums:
            if not in_registers(self.spec, place, self.chunks):
                self._line(3, f"sum{place} = number(0.0)")

    def _finishes(self, loop: Loop) -> None:
        added = [p for p in loop.sums if not in_registers(self.spec, p, self.chunks)]
        ops = [(f"v{n}", self.spec.body[n - self.first].op) for n in loop.reductions]
        self._combine(3, ops + [(f"sum{place}", "reduce_sum") for place in added])
        for place in added:
            self._add_by_one(place, f"sum{place}")

    def _combine(self, indent: int, values: list[tuple[str, str]]) -> None:
        """Combine values of a team's threads, by operators of their own, and tell all threads."""
        for name, op in values:
            self._line(indent, f"{name} = warp_{op}({name})")
        if self.block:
            most = EXCHANGES // 2
            for begin in range(0, len(values), most):
                self._exchange(indent, values[begin : begin + most])

    def _exchange(self, indent: int, values: list[tuple[str, str]]) -> None:
        """Warps of a block tell each other values, through shared memory, all at once.

        Whoever still reads there is waited for by the next exchange, which takes other places: half
        of all at most.
        """
        begin = self.exchanges[-1][-1] + 1 if self.exchanges else 0
        places = [(begin + k) % EXCHANGES for k in range(len(values))]
        self.exchanges.append(places)
        self._line(indent, "if lane_of_warp == 0:")
        for (name, _), place in zip(values, places, strict=True):
            self._line(indent + 1, f"kept[{place * 32} + warp] = {name}")
        self._line(indent, "cuda.syncthreads()")
        for (name, op), place in zip(values, places, strict=True):
            heard = f"kept[{place * 32} + lane_of_warp]"
            start = f"number({START[op]})"
            self._line(indent, f"{name} = warp_{op}({heard} if lane_of_warp < warps else {start})")

    def _registers(self, loop: Loop) -> None:
        """A loop over a row that lies in registers: straight code."""
        needed = [n for n in self._needs(self._targets(loop), elements=True) if n not in self.held]
        self.held |= set(needed)
        self._starts(loop)
        if loop is self.plan.loops[-1] and len(self.plan.loops) > 1:
            # Nobody needs what is computed here: chunk by chunk, it takes few registers.
            for c in range(self.chunks):
                inside = self._where_active(3, c)
                self._load_chunk(inside, needed, c)
                self._compute_chunks(inside, needed, [c])
                self._consume(inside, loop, self._suffixes(c), f"j{c}")
        else:
            # All reads first, so that they are on their way together.
            for c in range(self.chunks):
                self._zero_chunk(needed, c)
                self._load_chunk(self._where_active(3, c), needed, c)
            self._compute_chunks(3, needed, range(self.chunks))
            for c in range(self.chunks):
                if loop.reductions or loop.sums or loop.stores:
                    self._consume(self._where_active(3, c), loop, self._suffixes(c), f"j{c}")
        self._finishes(loop)

    def _where_active(self, indent: int, chunk: int) -> int:
        """Begins what threads do that have this chunk; returns its indent."""
        if self.full:
            return indent
        self._line(indent, f"if active{chunk}:")
        self._line(indent + 1, "pass")
        return indent + 1

    def _zero_chunk(self, needed: list[int], chunk: int) -> None:
        for number in needed:
            if number < self.first and not self.full:
                for suffix in self._suffixes(chunk):
                    self._line(3, f"v{number}{suffix} = number(0.0)")

    def _load_chunk(self, indent: int, needed: list[int], chunk: int) -> None:
        for number in needed:
            if number < self.first:
                names = [f"v{number}{s}" for s in self._suffixes(chunk)]
                self._load(indent, number, f"at{number} + j{chunk}", names)

    def _compute_chunks(self, indent: int, needed: list[int], chunks: Iterable[int]) -> None:
        suffixes = [s for c in chunks for s in self._suffixes(c)]
        for number in needed:
            if number >= self.first:
                self._compute(indent, number, suffixes)

    def _walk(self, loop: Loop) -> None:
        self._starts(loop)
        suffixes = [f"_{k}" for k in range(self.width)]
        self._line(3, f"j = begin + lane * {self.width}")
        self._line(3, "while j < end:")
        for number in self._needs(self._targets(loop), elements=True):
            if number >= self.first:
                self._compute(4, number, suffixes)
            else:
                self._load(4, number, f"at{number} + j", [f"v{number}{s}" for s in suffixes])
        self._consume(4, loop, suffixes, "j")
        self._line(4, f"j += lanes * {self.width}")
        self._finishes(loop)

    def _consume(self, indent: int, loop: Loop, suffixes: list[str], index: str) -> None:
        """What a loop does with a chunk of values that are known."""
        for number in loop.reductions:
            step = self.spec.body[number - self.first]
            for suffix in suffixes:
                value = self._arg(step.args[0], suffix)
                self._line(indent, f"v{number} = {step.op}(v{number}, {value})")
        for place in loop.sums:
            summand = self.spec.outputs[place].value
            for suffix in suffixes:
                self._line(indent, f"sum{place} = sum{place} + {self._arg(summand, suffix)}")
        for place in loop.stores:
            self._store_element(indent, place, suffixes, index)

    def _store_element(self, indent: int, place: int, suffixes: list[str], index: str) -> None:
        result = self.spec.outputs[place]
        values = [self._arg(result.value, suffix) for suffix in suffixes]
        number = self.first + place
        at = f"at{number} + {index}"
        if not self.spec.summed(result):
            self._store(indent, place, at, values)
        elif in_registers(self.spec, place, self.chunks):
            for suffix, value in zip(suffixes, values, strict=True):
                self._line(indent, f"sum{place}{suffix} = sum{place}{suffix} + {value}")
        else:
            # Always the same thread of the same team: nobody else adds to these.
            names = [f"old{k}" for k in range(len(values))]
            self._load(indent, number, at, names)
            added = [f"{name} + {value}" for name, value in zip(names, values, strict=True)]
            self._store(indent, place, at, added)

    def _store_row(self, place: int) -> None:
        result = self.spec.outputs[place]
        summed = self.spec.summed(result)
        number = self.first + place
        value = self._arg(result.value) + (" * part" if self.row_axis in summed else "")
        if not summed:
            self._line(3, "if lane == 0:")
            self._store(4, place, f"at{number}", [value])
        elif in_registers(self.spec, place, self.chunks):
            self._line(3, f"sum{place} = sum{place} + {value}")
        else:
            self._add_by_one(place, value)

    def _add_by_one(self, place: int, value: str) -> None:
        number = self.first + place
        self._line(3, "if lane == 0:")
        self._store(4, place, f"at{number}", [f"load{number}(p{number}, at{number}) + {value}"])


def _warp_function(op: str) -> str:
    """Source of ``warp_OP``, which combines the values of a warp's threads and tells all of them.

    Lanes swap in pairs: both of a pair combine the same two values, so all end with the same bits.
    """
    shuffles = [f"    v = {op}(v, shuffle(v, {mask}))" for mask in (16, 8, 4, 2, 1)]
    return "\n".join([f"def warp_{op}(v):", *shuffles, "    return v", ""])
