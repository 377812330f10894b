"""What the bridge executes step by step, as numbers.

Values of a step live in buffers of the chunk of rows that is being worked on; what backward needs
of them is written to the *stash*, an array with a row per step and sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from graphopt.kernels.recurrence.spec import Part, RecurrenceSpec
from graphopt.kernels.spec import KernelSpec

#: Places of operands; kernels/bridge/recurrence.h has the same list.
SEQUENCE, PREVIOUS, NEXT, STASH, SCRATCH, RING, VECTOR, VECTOR_SUM, CARRY_IN, CARRY_OUT = range(10)
#: Codes of instructions.
PRODUCT, KERNEL, COPY, ADD, ZERO, OUTER = range(6)
#: Homes of states.
PING_PONG, IN_STASH, IN_SEQUENCE, FIXED = range(4)

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
    stash_unit: int
    sequences: list[tuple[str, int, int, bool]]
    homes: list[tuple[int, int, int, int]]
    kernels: list[KernelSpec] = field(default_factory=list)
    packs: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
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
        found = [
            int(self.spec.dtype == "float64"),
            int(self.backward),
            self.stash_width,
            self.stash_unit,
        ]
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

    def pack(self, part: Part, *, transposed: bool, times: int = 1) -> int:
        """The packed part, multiplied by ``times``; ``transposed``: its rows are summed over."""
        depth, width = (part.rows, part.columns) if transposed else (part.columns, part.rows)
        made = (part.matrix, int(transposed), part.row, part.column, depth, width, times)
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


def outputs_of(spec: RecurrenceSpec) -> list[tuple[str, int, int, bool]]:
    """What is emitted, as in :attr:`Program.sequences`."""
    return [("output", k, ref.width, True) for k, ref in enumerate(spec.emit)]


def inputs_of(spec: RecurrenceSpec) -> list[tuple[str, int, int, bool]]:
    """What is read step by step, as in :attr:`Program.sequences`."""
    return [("input", i, width, False) for i, width in enumerate(spec.sequences)]


def shifted(view: View, columns: int) -> View:
    """The view from a later column on."""
    return (view[0], view[1], view[2] + columns)
