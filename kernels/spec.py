"""KernelSpec: what one fused kernel computes, as a value that prints and parses back.

A spec is a list of scalar instructions over an iteration space of named axes. Every operand covers
some of the axes; an axis it does not cover is broadcast (inputs) or summed over (outputs). Extents
are not part of the spec, so one kernel serves every batch size::

    f32[a|b] (f32[a,b], f32[b]) { %2 = add %0 %1; %3 = softmax %2; return %3:f32[a,b] }

The axes behind the bar are the *inner* ones: reductions run over all of them together and leave one
value per *row*, that is per combination of the other axes. Behind a second bar are *columns*, axes
of the arrays that come after those that are reduced::

    f32[a|b|c] (f32[a,b,c]) { %1 = reduce_sum %0; return %1:f32[a,c] }

What an output sums over: if it covers an inner axis, or the spec has none, every axis of the space
that it lacks; else every outer axis that it lacks, and its value must not vary within a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from graphopt.cached import cached_property
from graphopt.errors import ParseError
from graphopt.ir.types import DTYPES
from graphopt.kernels.instructions import INSTRUCTIONS, Kind

#: An operand of an instruction: the number of a value, or a literal.
Arg = int | float

_SHORT = {name: short for name, (short, _, _) in DTYPES.items()}
LETTERS = "abcdefghijklmnopqrstuvwxyz"

#: What kernels compute in, and what they read and write.
COMPUTE_DTYPES = ("float32", "float64")
STORAGE_DTYPES = ("float16", "float32", "float64", "int32", "int64", "int8", "uint8", "bool")


@dataclass(frozen=True, slots=True)
class Operand:
    """An array a kernel reads or writes: its dtype, and the axis each dimension runs along.

    ``None`` stands for a dimension of extent 1.
    """

    dtype: str
    axes: tuple[int | None, ...]

    @property
    def covers(self) -> frozenset[int]:
        """The axes it varies along."""
        return frozenset(axis for axis in self.axes if axis is not None)

    def __str__(self) -> str:
        """Print as ``f32[a,1,c]``."""
        letters = ("1" if axis is None else LETTERS[axis] for axis in self.axes)
        return f"{_SHORT[self.dtype]}[{','.join(letters)}]"


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One scalar operation; its result is the next value."""

    op: str
    args: tuple[Arg, ...]

    def __eq__(self, other: object) -> bool:
        # By their text: the value %1 is not the literal 1.0, nor is 0.0 the literal -0.0.
        if not isinstance(other, Instruction):
            return NotImplemented
        return self.op == other.op and repr(self.args) == repr(other.args)

    def __hash__(self) -> int:
        return hash((self.op, repr(self.args)))


@dataclass(frozen=True, slots=True)
class Result:
    """An output: which value, and where it goes."""

    value: int
    operand: Operand


@dataclass(frozen=True)
class KernelSpec:
    """A fused computation; values are numbered, inputs first.

    Attributes:
        dtype: what it computes in, ``float32`` or ``float64``; other dtypes are converted when
            read or written.
        rank: number of axes of the iteration space.
        inner: how many axes reductions run over; 0 without reductions.
        inputs: what it reads.
        body: instructions in order.
        outputs: what it writes.
        precise: round every instruction as MXNet's operators do, by the C library's functions.
        columns: how many axes come behind those that reductions run over.
    """

    dtype: str
    rank: int
    inner: int
    inputs: tuple[Operand, ...]
    body: tuple[Instruction, ...]
    outputs: tuple[Result, ...]
    precise: bool = False
    columns: int = 0

    def __post_init__(self) -> None:
        """Check that it makes sense.

        Raises:
            ParseError: it does not; the message names the instruction or operand.
        """
        _check(self)

    @property
    def inner_axes(self) -> frozenset[int]:
        """Axes reductions run over."""
        end = self.rank - self.columns
        return frozenset(range(end - self.inner, end))

    @property
    def row_axis(self) -> int:
        """Of a collapsed spec, the axis that runs along rows."""
        return self.rank - 1 - self.columns

    @cached_property
    def varies(self) -> tuple[frozenset[int], ...]:
        """For every value, the axes it varies along."""
        found = [operand.covers for operand in self.inputs]
        for instruction in self.body:
            axes: frozenset[int] = frozenset()
            for arg in instruction.args:
                if isinstance(arg, int):
                    axes |= found[arg]
            if INSTRUCTIONS[instruction.op].kind is Kind.REDUCE:
                axes -= self.inner_axes
            found.append(axes)
        return tuple(found)

    def summed(self, result: Result) -> frozenset[int]:
        """The axes an output is summed over (see the module's text)."""
        covered = result.operand.covers
        space = frozenset(range(self.rank))
        if self.inner and not covered & self.inner_axes:
            space -= self.inner_axes
        return space - covered

    def __str__(self) -> str:
        """The text form; :func:`parse` reads it."""
        return self._text

    @cached_property
    def _text(self) -> str:
        end = self.rank - self.columns
        bounds = (0, end - self.inner, end, self.rank)
        parts = [",".join(LETTERS[a:b]) for a, b in pairwise(bounds)]
        space = "|".join(parts[: 1 + bool(self.inner) + bool(self.columns)])
        steps = [
            f"%{len(self.inputs) + i} = {step.op} {' '.join(map(_print_arg, step.args))}".rstrip()
            for i, step in enumerate(self.body)
        ]
        steps.append("return " + ", ".join(f"%{r.value}:{r.operand}" for r in self.outputs))
        inputs = ", ".join(map(str, self.inputs))
        precise = "precise " if self.precise else ""
        return f"{precise}{_SHORT[self.dtype]}[{space}] ({inputs}) {{ {'; '.join(steps)} }}"

    def __hash__(self) -> int:
        """Of the text, which is computed once."""
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, KernelSpec) else NotImplemented


def _print_arg(arg: Arg) -> str:
    return f"%{arg}" if isinstance(arg, int) else repr(arg)


def _check(spec: KernelSpec) -> None:
    if spec.dtype not in COMPUTE_DTYPES:
        raise ParseError(f"a kernel cannot compute in {spec.dtype}")
    if not 0 <= spec.inner <= spec.rank - spec.columns <= spec.rank <= len(LETTERS):
        raise ParseError(f"{spec.inner} inner axes and {spec.columns} behind them, of {spec.rank}")
    if spec.columns and not spec.inner:
        raise ParseError("columns come behind inner axes, of which there are none")
    for operand in (*spec.inputs, *(result.operand for result in spec.outputs)):
        if operand.dtype not in STORAGE_DTYPES:
            raise ParseError(f"a kernel cannot read or write {operand.dtype}")
        axes = [axis for axis in operand.axes if axis is not None]
        if axes != sorted(set(axes)) or any(axis >= spec.rank for axis in axes):
            raise ParseError(f"operand {operand} does not fit a space of {spec.rank} axes in order")
    known = len(spec.inputs)
    for step in spec.body:
        found = INSTRUCTIONS.get(step.op)
        if found is None:
            raise ParseError(f"kernels know no instruction {step.op!r}")
        if len(step.args) != found.arity:
            raise ParseError(f"{step.op} takes {found.arity} operands, not {len(step.args)}")
        if found.kind is not Kind.MAP and not spec.inner:
            raise ParseError(f"{step.op} needs inner axes to run over")
        if any(isinstance(arg, int) and not 0 <= arg < known for arg in step.args):
            raise ParseError(f"%{known} = {step.op} reads a value that comes later")
        known += 1
    if not spec.outputs or any(not 0 <= result.value < known for result in spec.outputs):
        raise ParseError("a kernel returns values it computes, at least one")
    inner = spec.inner_axes
    for result in spec.outputs:
        if inner & spec.varies[result.value] and not inner & result.operand.covers:
            raise ParseError(
                f"output %{result.value}:{result.operand} has one value for each row, and what it"
                " is given varies along rows; reduce that first, as by reduce_sum"
            )
