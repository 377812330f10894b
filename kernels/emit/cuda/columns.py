"""CUDA kernels that reduce axes which others come behind: neighbouring rows lie side by side.

So threads along x take neighbouring rows, and read what lies side by side; those along y share a
row, and tell each other what they reduced through shared memory. No output is summed over: what is
to be is written whole, and added up by a kernel of its own (:mod:`graphopt.kernels.cuda.plan`).
"""

from __future__ import annotations

from graphopt.kernels.emit.cuda.emitter import Emitter, Form
from graphopt.kernels.emit.schedule import Loop, schedule
from graphopt.kernels.emit.source import START
from graphopt.kernels.spec import KernelSpec


class Columns(Emitter):
    """Walks rows that lie across, some of them side by side in a block."""

    def __init__(self, spec: KernelSpec, form: Form) -> None:
        super().__init__(spec, form)
        self.plan = schedule(spec, keeps=False)
        self.column_axis = spec.rank - 1

    def source(self) -> str:
        """The kernel's."""
        return self._assembled(["tiles"], self._block)

    def _block(self) -> None:
        row, column = self.row_axis, self.column_axis
        self._line(1, f"n = e{row}")
        self._line(1, "length = number(n)")
        self._line(1, "kept = shared_by_threads()")
        self._line(1, "across = wide(cuda.blockDim.x)")
        self._line(1, "lane = wide(cuda.threadIdx.x)")
        self._line(1, "first = wide(cuda.threadIdx.y)")
        self._line(1, "lanes = wide(cuda.blockDim.y)")
        self._line(1, "block = wide(cuda.blockIdx.x)")
        self._line(1, "r = quotient(block, tiles)")
        self._line(1, "c = (block - r * tiles) * across + lane")
        # All threads of a block meet where values are exchanged, also those beyond the last column.
        self._line(1, f"inside = c < e{column}")
        self._split(1, "r", row)
        self._line(1, f"x{row} = wide(0)")
        self._line(1, f"x{column} = c if inside else wide(0)")
        for number, operand in enumerate(self.operands):
            self._line(1, f"at{number} = {self._offset(number, self.spec.rank)}")
            if row in operand.covers:
                step = f"e{column}" if column in operand.covers else "1"
                self._line(1, f"step{number} = {step}")
        for at, loop in enumerate(self.plan.loops):
            self._row_values(1, self.plan.before[at])
            self._walk(loop)
        for values in self.plan.before[len(self.plan.loops) :]:
            self._row_values(1, values)
        for place in self.plan.row_stores:
            number = self.first + place
            self._line(1, f"if first == 0 and {self._owns(place)}:")
            self._store(2, place, f"at{number}", [self._arg(self.spec.outputs[place].value)])

    def _owns(self, place: int) -> str:
        """Which of the threads side by side write an output."""
        covers = self.spec.outputs[place].operand.covers
        return "inside" if self.column_axis in covers else "c == 0"

    def _walk(self, loop: Loop) -> None:
        reductions = [(n, self.spec.body[n - self.first]) for n in loop.reductions]
        for number, step in reductions:
            self._line(1, f"v{number} = number({START[step.op]})")
        self._line(1, "j = first")
        self._line(1, "while j < n:")
        for number in self._needs(self._targets(loop), elements=True):
            if number < self.first:
                self._load(2, number, f"at{number} + j * step{number}", [f"v{number}"])
            else:
                self._compute(2, number, [""])
        for number, step in reductions:
            self._line(2, f"v{number} = {step.op}(v{number}, {self._arg(step.args[0])})")
        for place in loop.stores:
            number = self.first + place
            self._line(2, f"if {self._owns(place)}:")
            value = self._arg(self.spec.outputs[place].value)
            self._store(3, place, f"at{number} + j * step{number}", [value])
        self._line(2, "j += lanes")
        for number, step in reductions:
            self._combine(f"v{number}", step.op)

    def _combine(self, name: str, op: str) -> None:
        """Combine the values of a row's threads, in the same order for each of them."""
        self._line(1, f"kept[first * across + lane] = {name}")
        self._line(1, "cuda.syncthreads()")
        self._line(1, f"{name} = kept[lane]")
        self._line(1, "k = wide(1)")
        self._line(1, "while k < lanes:")
        self._line(2, f"{name} = {op}({name}, kept[k * across + lane])")
        self._line(2, "k += 1")
        self._line(1, "cuda.syncthreads()")
