"""Spec -> Python source of a CPU kernel.

The kernel walks ``m`` rows of ``n`` elements::

    kernel(pointers, strides, m, n, scratch)

``pointers`` has the address of each operand, inputs first, ``strides`` how many elements lie
between two rows of it (0 where it is broadcast or summed over rows). Elements of a row are
adjacent. The bridge cuts the iteration space into such tiles. Outputs that are summed over are
added to.

A kernel with an *index* finds behind the addresses, for each operand, that of the numbers of its
rows, int32, or 0 if they come one after the other.

The source calls functions named after instructions; :mod:`graphopt.kernels.cpu` defines them, and
:mod:`graphopt.kernels.lowering` makes LLVM IR of it.
"""

from __future__ import annotations

from graphopt.kernels.emit.schedule import Loop, Schedule, schedule
from graphopt.kernels.emit.source import START, Source
from graphopt.kernels.instructions import INSTRUCTIONS
from graphopt.kernels.spec import KernelSpec

#: Of a cache line.
_LINE_BYTES = 64
#: So many elements are computed together. What is left of a row is copied to where there is room
#: for so many, as an element by itself takes as long as a vector of them.
TOGETHER = 16
#: So many elements of a row are added up before their sum is, and so many such sums: of more, too
#: much would be rounded away.
_SUMMED_TOGETHER = 4096
_SUMS_TOGETHER = 64

#: From so many additions an element on, see `_Emitter._is_dear`.
_DEAR = 8.0

#: Bytes of an element of each storage dtype.
ITEM_SIZE = {
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int32": 4,
    "int64": 8,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


def emit_cpu(
    spec: KernelSpec, *, index: bool = False, groups: tuple[int, ...] = (), masks: bool = False
) -> tuple[str, int]:
    """Source of the function ``kernel`` and the scratch rows it needs, of ``n`` elements each.

    Args:
        spec: expanded and collapsed (:mod:`graphopt.kernels.expand`).
        index: whether operands may have numbers of rows.
        groups: powers of two, from large to small: a row is computed by so many elements together
            as long as there are as many, and the last ones by a vector that leaves elements out.
            None, if vectors cannot.
        masks: whether what is left of a row is computed by such a vector, without groups.
    """
    plan = schedule(spec)
    emitter = _Emitter(spec, plan, index=index, groups=groups, masks=masks)
    return emitter.source(), len(plan.scratch)


def emit_piece(spec: KernelSpec) -> str:
    """Source of the function ``kernel`` for some columns of one row, of a spec that comes apart.

    It computes TOGETHER columns from ``n`` on of the row whose parts ``pointers`` has, and has the
    arguments of other kernels.
    """
    return _Emitter(spec, schedule(spec)).piece()


def comes_apart(spec: KernelSpec) -> bool:
    """Whether some columns of a row can be computed by themselves, float32 from float32."""
    from graphopt.kernels.contract import prepared

    spec = prepared(spec)
    plan = schedule(spec)
    operands = [*spec.inputs, *(result.operand for result in spec.outputs)]
    if any(place.dtype != "float32" or spec.rank - 1 not in place.covers for place in operands):
        return False
    if any(map(spec.summed, spec.outputs)) or any(plan.before) or plan.row_stores:
        return False
    return len(plan.loops) == 1 and _is_plain(plan.loops[0])


def storage(spec: KernelSpec) -> list[str]:
    """The dtype in memory of each operand; sums are kept in what the kernel computes in."""
    inputs = [operand.dtype for operand in spec.inputs]
    return inputs + [
        spec.dtype if spec.summed(result) else result.operand.dtype for result in spec.outputs
    ]


class _Emitter(Source):
    def __init__(
        self,
        spec: KernelSpec,
        plan: Schedule,
        *,
        index: bool = False,
        groups: tuple[int, ...] = (),
        masks: bool = False,
    ) -> None:
        super().__init__(spec, plan)
        self.index, self.groups, self.masks = index, groups, masks

    def source(self) -> str:
        body = self._capture(self._rows)
        head = ["def kernel(pointers, strides, m, n, scratch):"]
        for number, dtype in enumerate(storage(self.spec)):
            size = ITEM_SIZE[dtype]
            head.append(f"    base{number} = pointers[{number}]")
            head.append(f"    step{number} = strides[{number}] * {size}")
            if self.index:
                count = self.first + len(self.spec.outputs)
                head.append(f"    index{number} = pointers[{count + number}]")
        head += [f"    {name} = number({value})" for value, name in self.literals.items()]
        head.append("    length = number(n)")
        head += [f"    whole{count} = n & {-count}" for count in self.groups]
        if self.masks or (not self.groups and any(map(_is_plain, self.plan.loops))):
            head.append(f"    whole = n & {-TOGETHER}")
            if not self.masks:
                head.append("    rest = room()")
        return "\n".join([*head, *body, ""])

    def piece(self) -> str:
        body = self._capture(self._columns)
        head = ["def kernel(pointers, strides, m, n, scratch):"]
        for number, dtype in enumerate(storage(self.spec)):
            head.append(f"    at{number} = pointers[{number}] + n * {ITEM_SIZE[dtype]}")
            # The columns behind these: a matrix unit that reads memory meanwhile delays loads.
            head.append(f"    prefetch(at{number}, {2 * TOGETHER * ITEM_SIZE[dtype] - 1})")
        head += [f"    {name} = number({value})" for value, name in self.literals.items()]
        return "\n".join([*head, *body, ""])

    def _columns(self) -> None:
        self._line(1, f"for j in range({TOGETHER}):")
        self._line(3, "interleaved()")
        self._elements(self.plan.loops[0])

    def _rows(self) -> None:
        self._line(1, "for i in range(m):")
        for number in range(self.first + len(self.spec.outputs)):
            row = f"row_of(index{number}, i)" if self.index else "i"
            self._line(2, f"at{number} = base{number} + {row} * step{number}")
        if self.index:
            self._prefetch_numbered()
        for slot in self.plan.scratch.values():
            self._line(2, f"keep{slot} = scratch + {slot} * n * {ITEM_SIZE[self.spec.dtype]}")
        self._walks()

    def _prefetch_numbered(self) -> None:
        """Ask for the next row of operands whose rows have numbers: these are in no stream."""
        self._line(2, "if i + 1 < m:")
        for number, dtype in enumerate(storage(self.spec)):
            size = ITEM_SIZE[dtype]
            self._line(3, f"if index{number} != 0:")
            self._line(
                4, f"next{number} = base{number} + row_of(index{number}, i + 1) * step{number}"
            )
            self._line(4, f"for j in range(0, n, {_LINE_BYTES // size}):")
            self._line(5, f"prefetch(next{number}, j * {size})")

    def _row_values(self, values: list[int]) -> None:
        for number in values:
            self._compute(2, number, "0")

    def _loop(self, loop: Loop) -> None:
        if _is_plain(loop):
            if self.groups:
                self._in_groups(loop)
                return
            self._line(2, "for j in range(whole):")
            self._line(3, "interleaved()")
            self._elements(loop)
            if self.masks:
                self._masked(loop, "whole")
                return
            self._line(2, "if whole < n:")
            self._rest(loop)
            return
        for number in loop.reductions:
            op = self.spec.body[number - self.first].op
            self._line(2, f"v{number} = number({START[op]})")
        for place in loop.sums:
            self._line(2, f"sum{place} = number(0.0)")
        end = "whole" if self.masks and self._is_dear(loop) else "n"
        sums = self._sums(loop)
        if sums and self.spec.dtype == "float32":
            self._in_blocks(loop, sums, end)
        else:
            self._line(2, f"for j in range({end}):")
            self._elements(loop)
        if end == "whole":
            self._masked(loop, end)
        for place in loop.sums:
            self._line(2, f"{self._store(place, '0', f'sum{place}', adds=True)}")

    def _is_dear(self, loop: Loop) -> bool:
        """Whether some elements by themselves take longer than a vector that leaves others out."""
        steps = [self.spec.body[n - self.first] for n in loop.values if n >= self.first]
        return sum(INSTRUCTIONS[step.op].cost for step in steps) >= _DEAR

    def _sums(self, loop: Loop) -> list[str]:
        """Names of what a walk adds up."""
        steps = {number: self.spec.body[number - self.first] for number in loop.reductions}
        totals = [f"v{number}" for number, step in steps.items() if step.op == "reduce_sum"]
        return totals + [f"sum{place}" for place in loop.sums]

    def _in_blocks(self, loop: Loop, sums: list[str], last: str) -> None:
        """A walk that adds up to there: sums of a block, of blocks near by, and of all.

        The first block, which most rows are no longer than, costs nothing more.
        """
        near, together = _SUMMED_TOGETHER, _SUMMED_TOGETHER * _SUMS_TOGETHER
        elements = self._capture(lambda: self._elements(loop))
        for name in sums:
            self._line(2, f"near_{name} = number(0.0)")
            self._line(2, f"all_{name} = number(0.0)")
        self._line(2, f"end = {last}")
        self._line(2, f"if end > {near}:")
        self._line(3, f"end = {near}")
        self._line(2, "for j in range(end):")
        self.lines += elements
        self._line(2, f"for begin in range({near}, {last}, {near}):")
        for name in sums:
            self._line(3, f"near_{name} = near_{name} + {name}")
            self._line(3, f"{name} = number(0.0)")
        self._line(3, f"if begin % {together} == 0:")
        for name in sums:
            self._line(4, f"all_{name} = all_{name} + near_{name}")
            self._line(4, f"near_{name} = number(0.0)")
        self._line(3, f"end = begin + {near}")
        self._line(3, f"if end > {last}:")
        self._line(4, f"end = {last}")
        self._line(3, "for j in range(begin, end):")
        self.lines += [f"    {line}" for line in elements]
        self._line(2, f"if {last} > {near}:")
        for name in sums:
            self._line(3, f"{name} = all_{name} + (near_{name} + {name})")

    def _in_groups(self, loop: Loop) -> None:
        """Whole vectors are faster than masked ones, and none is computed for nothing."""
        begin = "0"
        for count in self.groups:
            self._line(2, f"for j in range({begin}, whole{count}):")
            self._line(3, f"interleaved{count}()")
            self._elements(loop)
            begin = f"whole{count}"
        self._masked(loop, begin)

    def _masked(self, loop: Loop, begin: str) -> None:
        """What is left of a row from there on, by vectors that leave elements out."""
        self._line(2, f"for j in range({begin}, n):")
        self._line(3, "by_masks()")
        self._elements(loop)

    def _elements(self, loop: Loop) -> None:
        for number in loop.reads:
            self._line(3, f"v{number} = load_kept(keep{self.plan.scratch[number]}, j)")
        for number in loop.values:
            self._compute(3, number, "j")
        for number in loop.keeps:
            self._line(3, f"store_kept(keep{self.plan.scratch[number]}, j, v{number})")
        for number in loop.reductions:
            step = self.spec.body[number - self.first]
            self._line(3, f"v{number} = {step.op}(v{number}, {self._arg(step.args[0])})")
        for place in loop.sums:
            value = self.spec.outputs[place].value
            self._line(3, f"sum{place} = reduce_sum(sum{place}, v{value})")
        for place in loop.stores:
            self._store_element(place)
        if not (loop.values or loop.reads or loop.stores):
            self._line(3, "pass")

    def _rest(self, loop: Loop) -> None:
        """What is left of a row, computed as one vector in memory of its own."""
        self._line(3, "forget()")
        read = [number for number in loop.values if number < self.first]
        for number in read:
            self._line(3, "for j in range(n - whole):")
            self._line(4, "one_by_one()")
            value = f"load{number}(at{number}, whole + j)"
            self._line(4, f"store_rest{number}(rest, {number * TOGETHER} + j, {value})")
        self._line(3, f"for j in range({TOGETHER}):")
        for number in loop.values:
            if number in read:
                value = f"load_rest{number}(rest, {number * TOGETHER} + j)"
                self._line(4, f"v{number} = {value}")
            else:
                self._compute(4, number, "j")
        for place in loop.stores:
            number, made = self.first + place, self.spec.outputs[place].value
            self._line(4, f"store_rest{number}(rest, {number * TOGETHER} + j, v{made})")
        for place in loop.stores:
            number = self.first + place
            adds = bool(self.spec.summed(self.spec.outputs[place]))
            value = f"load_rest{number}(rest, {number * TOGETHER} + j)"
            self._line(3, "for j in range(n - whole):")
            self._line(4, "one_by_one()")
            self._line(4, self._store(place, "whole + j", value, adds=adds))

    def _compute(self, indent: int, number: int, index: str) -> None:
        if number < self.first:
            self._line(indent, f"v{number} = load{number}(at{number}, {index})")
            return
        step = self.spec.body[number - self.first]
        args = [self._arg(arg) for arg in step.args]
        self._line(indent, f"v{number} = {self._expression(step.op, args)}")

    def _store_element(self, place: int) -> None:
        result = self.spec.outputs[place]
        adds = bool(self.spec.summed(result))
        self._line(3, self._store(place, "j", f"v{result.value}", adds=adds))

    def _store_row(self, place: int) -> None:
        result = self.spec.outputs[place]
        summed = self.spec.summed(result)
        value = f"v{result.value}" + (" * length" if self.row_axis in summed else "")
        self._line(2, self._store(place, "0", value, adds=bool(summed)))


def _is_plain(loop: Loop) -> bool:
    """Whether elements of a row are computed one like the other, and nothing else is."""
    return bool(loop.stores) and not (loop.reductions or loop.sums or loop.reads or loop.keeps)
