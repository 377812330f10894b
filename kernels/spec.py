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

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from graphopt.cached import cached_property
from graphopt.errors import ParseError
from graphopt.ir.types import DTYPES
from graphopt.kernels.instructions import INSTRUCTIONS, Kind

#: An operand of an instruction: the number of a value, or a literal.
Arg = int | float

_SHORT = {name: short for name, (short, _, _) in DTYPES.items()}
_LONG = {short: name for name, short in _SHORT.items()}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

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
        letters = ("1" if axis is None else _LETTERS[axis] for axis in self.axes)
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
        parts = [",".join(_LETTERS[a:b]) for a, b in pairwise(bounds)]
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
    if not 0 <= spec.inner <= spec.rank - spec.columns <= spec.rank <= len(_LETTERS):
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


class Builder:
    """Collects instructions; equal ones become one value, trivial ones vanish."""

    def __init__(
        self, dtype: str, rank: int, inner: int, *, precise: bool = False, columns: int = 0
    ) -> None:
        """Begin an empty spec."""
        self.dtype, self.rank, self.inner, self.precise = dtype, rank, inner, precise
        self.columns = columns
        self._inputs: list[Operand] = []
        self._body: list[Instruction] = []
        self._known: dict[Instruction, Arg] = {}

    @classmethod
    def like(cls, spec: KernelSpec) -> Builder:
        """Begin an empty spec over the space of another one."""
        return cls(spec.dtype, spec.rank, spec.inner, precise=spec.precise, columns=spec.columns)

    def input(self, operand: Operand) -> int:
        """Append an input (before any instruction); returns its value."""
        if self._body:
            raise ValueError("inputs come before instructions")
        self._inputs.append(operand)
        return len(self._inputs) - 1

    def __call__(self, op: str, *args: Arg) -> Arg:
        """The value of an instruction."""
        trivial = _trivial(op, args)
        if trivial is not None:
            return trivial
        step = Instruction(op, tuple(args))
        if step not in self._known:
            self._body.append(step)
            self._known[step] = len(self._inputs) + len(self._body) - 1
        return self._known[step]

    def build(self, outputs: Iterable[tuple[Arg, Operand]]) -> KernelSpec:
        """The spec of what the outputs need; inputs all stay."""
        results = []
        for value, operand in outputs:
            number = value if isinstance(value, int) else self("literal", value)
            results.append(Result(int(number), operand))
        return prune(
            KernelSpec(
                self.dtype,
                self.rank,
                self.inner,
                tuple(self._inputs),
                tuple(self._body),
                tuple(results),
                self.precise,
                self.columns,
            )
        )


def _trivial(op: str, args: Sequence[Arg]) -> Arg | None:
    """What an instruction is equal to for all values, NaN and signed zeros included."""
    if op == "mul" and 1.0 in args[1:] and isinstance(args[1], float):
        return args[0]
    if op == "mul" and isinstance(args[0], float) and args[0] == 1.0:
        return args[1]
    if op == "div" and isinstance(args[1], float) and args[1] == 1.0:
        return args[0]
    if op == "sub" and repr(args[1]) == "0.0":  # not -0.0: that would turn -0.0 into 0.0
        return args[0]
    return None


def prune(spec: KernelSpec) -> KernelSpec:
    """The spec without instructions that no output needs; inputs keep their places."""
    first = len(spec.inputs)
    needed = {result.value for result in spec.outputs}
    for number in range(first + len(spec.body) - 1, first - 1, -1):
        if number in needed:
            args = spec.body[number - first].args
            needed.update(arg for arg in args if isinstance(arg, int))
    keep = [n for n in range(first, first + len(spec.body)) if n in needed]
    if len(keep) == len(spec.body):
        return spec
    renumber = {n: n for n in range(first)} | {n: first + i for i, n in enumerate(keep)}
    body = tuple(_renumbered(spec.body[n - first], renumber) for n in keep)
    outputs = tuple(Result(renumber[r.value], r.operand) for r in spec.outputs)
    return replace(spec, body=body, outputs=outputs)


def used_inputs(spec: KernelSpec) -> list[int]:
    """Inputs that an instruction or an output reads."""
    read = {arg for step in spec.body for arg in step.args if isinstance(arg, int)}
    read |= {result.value for result in spec.outputs}
    return [number for number in range(len(spec.inputs)) if number in read]


def without_unused_inputs(
    spec: KernelSpec, spare: Iterable[int] = ()
) -> tuple[KernelSpec, list[int]]:
    """The spec without inputs that nothing reads, and which inputs are left.

    Args:
        spec: a kernel.
        spare: inputs that stay unread where nothing else tells the extent of an axis, the first
            of them that do.
    """
    keep = _telling_inputs(spec, spare)
    first = len(spec.inputs)
    if len(keep) == first:
        return spec, keep
    renumber = {n: i for i, n in enumerate(keep)}
    renumber |= {n: n - first + len(keep) for n in range(first, first + len(spec.body))}
    inputs = tuple(spec.inputs[n] for n in keep)
    body = tuple(_renumbered(step, renumber) for step in spec.body)
    outputs = tuple(Result(renumber[r.value], r.operand) for r in spec.outputs)
    return replace(spec, inputs=inputs, body=body, outputs=outputs), keep


def _telling_inputs(spec: KernelSpec, spare: Iterable[int]) -> list[int]:
    """Inputs that are read, and those of the spare ones that alone tell the extent of an axis."""
    keep = used_inputs(spec)
    operands = [*(spec.inputs[n] for n in keep), *(result.operand for result in spec.outputs)]
    told = frozenset[int]().union(*(operand.covers for operand in operands))
    for number in spare:
        if not spec.inputs[number].covers <= told:
            keep.append(number)
            told |= spec.inputs[number].covers
    return sorted(keep)


def _renumbered(step: Instruction, renumber: dict[int, int]) -> Instruction:
    args = tuple(renumber[arg] if isinstance(arg, int) else arg for arg in step.args)
    return Instruction(step.op, args)


_HEAD = re.compile(r"\s*(precise\s+)?(\w+)\[([a-z,|]*)\]\s*\((.*?)\)\s*\{(.*)\}\s*", re.DOTALL)
_OPERAND = re.compile(r"(\w+)\[([a-z1,]*)\]")
_STEP = re.compile(r"%(\d+)\s*=\s*(\w+)((?:\s+\S+)*)")


@lru_cache(maxsize=4096)
def parse(text: str) -> KernelSpec:
    """The inverse of ``str(spec)``.

    Raises:
        ParseError: the text is no spec; the message names the part.
    """
    head = _HEAD.fullmatch(text)
    if head is None or head[2] not in _LONG:
        raise ParseError(f"{_short(text)!r} is no kernel spec")
    counts = [len(_letters(part)) for part in head[3].split("|")]
    if len(counts) > 3:
        raise ParseError(f"{_short(text)!r} has more than two bars")
    outer, inner, columns = (*counts, 0, 0)[:3]
    inputs = tuple(_operand(part) for part in re.findall(r"\w+\[[^\]]*\]", head[4]))
    *steps, last = [part.strip() for part in head[5].split(";")]
    body = []
    for number, step in enumerate(steps, len(inputs)):
        match = _STEP.fullmatch(step)
        if match is None or int(match[1]) != number:
            raise ParseError(f"{step!r} is no instruction of a kernel")
        body.append(Instruction(match[2], tuple(map(_arg, match[3].split()))))
    if not last.startswith("return"):
        raise ParseError(f"a kernel spec ends with its outputs, not {last!r}")
    returned = re.findall(r"%(\d+):(\w+\[[^\]]*\])", last)
    outputs = tuple(Result(int(value), _operand(operand)) for value, operand in returned)
    return KernelSpec(
        _LONG[head[2]],
        outer + inner + columns,
        inner,
        inputs,
        tuple(body),
        outputs,
        precise=bool(head[1]),
        columns=columns,
    )


def _letters(text: str) -> list[str]:
    return [letter for letter in text.split(",") if letter]


def _operand(text: str) -> Operand:
    match = _OPERAND.fullmatch(text.strip())
    if match is None or match[1] not in _LONG:
        raise ParseError(f"{text!r} is no operand of a kernel")
    parts = _letters(match[2])
    return Operand(_LONG[match[1]], tuple(None if p == "1" else _LETTERS.index(p) for p in parts))


def _arg(text: str) -> Arg:
    try:
        return int(text[1:]) if text.startswith("%") else float(text)
    except ValueError:
        raise ParseError(f"{text!r} is neither a value nor a number") from None


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
