"""Which kernels to launch on a GPU for a spec, on how many threads, and with which arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from graphopt.errors import UnsupportedError
from graphopt.ir.types import DTYPES
from graphopt.kernels.cuda.compiled import SIMULATED, FusedKernel, Kernel, PartsKernel
from graphopt.kernels.cuda.device import ACCESS
from graphopt.kernels.emit.cpu import ITEM_SIZE, storage
from graphopt.kernels.emit.cuda import Form, in_registers, is_flat, parts
from graphopt.kernels.expand import collapse, expand
from graphopt.kernels.spec import KernelSpec, Operand, Result
from graphopt.kernels.spec_parser import parse

#: What an argument of a kernel is: the address of an operand, of an area, or a number.
OPERAND, AREA, NUMBER = 0, 1, 2
#: What is to be done with an output, in MXNet's terms: nothing, overwrite it, add to it.
SKIP, WRITE, ADD = 0, 1, 3

_WARP = 32
#: Threads of a block of the flat form, and blocks at most.
_FLAT_THREADS = 256
_MOST_BLOCKS = 2 if SIMULATED else 1 << 30
#: Blocks of a grid that CUDA launches at most.
_LARGEST_GRID = (1 << 31) - 1
#: Threads of a block whose warps are teams, and of blocks that are teams at most.
_TEAMS_THREADS = 64 if SIMULATED else 128
_MOST_THREADS = 128 if SIMULATED else 1024
#: Chunks that a thread of a warp holds at most: longer rows are faster with a block each.
_CHUNKS_OF_WARP = 4
#: Chunks that threads of blocks hold, the fewest for which a row fits; the last one where nothing
#: is summed over, since sums take registers too.
_CHUNKS_OF_BLOCK = (2, 4, 8)
#: Blocks of the flat form's size for each multiprocessor: where rows have no sums to share, and
#: where each block keeps sums, which another kernel has to read.
_BLOCKS_PER_PROCESSOR = 8
_BLOCKS_WITH_SUMS = 4
#: Threads of blocks whose rows lie side by side: across at least, along rows at most, and how many
#: a multiprocessor should have.
_FEWEST_ACROSS = 8
_MOST_ALONG = 16
_THREADS_OF_PROCESSOR = 1024
#: Elements whose places are short (:class:`graphopt.kernels.emit.cuda.Form`).
_SHORT = 1 << 31
#: What areas begin at multiples of, in bytes.
_AREA_ALIGNMENT = 256


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: what to compile.
        blocks: of the grid.
        threads: of a block, along x and y.
        arguments: of each parameter what it is, and which; all are 8 bytes long.
    """

    kernel: Kernel
    blocks: int
    threads: tuple[int, int]
    arguments: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LaunchPlan:
    """Launches one after the other, and the memory that they need besides operands.

    Attributes:
        launches: in order.
        areas: elements and dtype of each piece of memory.
    """

    launches: tuple[Launch, ...]
    areas: tuple[tuple[int, str], ...] = ()

    def offsets(self) -> tuple[list[int], int]:
        """Where areas begin in one piece of memory, in bytes, and the size of it."""
        starts = [0]
        for count, dtype in self.areas:
            size = count * ITEM_SIZE[dtype]
            starts.append(starts[-1] + -(-size // _AREA_ALIGNMENT) * _AREA_ALIGNMENT)
        return starts[:-1], starts[-1]


@lru_cache(maxsize=4096)
def plan_of(
    walked: KernelSpec,
    space: tuple[int, ...],
    *,
    aligned: bool,
    processors: int,
    requests: tuple[int, ...] | None = None,
) -> LaunchPlan:
    """The launches that compute ``walked``.

    Args:
        walked: a forward spec, or that of gradients.
        space: extents of its axes.
        aligned: whether all operands lie at multiples of 16 bytes.
        processors: multiprocessors of the GPU.
        requests: what to do with each output; by default all are overwritten.

    Raises:
        UnsupportedError: there are more rows than a GPU launches blocks.
    """
    return _Planner(walked, space, aligned, processors, requests).plan()


class _Planner:
    def __init__(
        self,
        walked: KernelSpec,
        space: tuple[int, ...],
        aligned: bool,
        processors: int,
        requests: tuple[int, ...] | None,
    ) -> None:
        collapsed = collapse(expand(walked))
        self.spec = collapsed.spec
        self.extents = [1] * self.spec.rank
        for axis, extent in enumerate(space):
            self.extents[collapsed.group[axis]] *= extent
        self.aligned, self.processors = aligned, processors
        self.requests = requests or (WRITE,) * len(self.spec.outputs)
        self.areas: list[tuple[int, str]] = []
        self.first = len(self.spec.inputs)
        #: Where each output is written to.
        self.targets = [self._target(p, r) for p, r in enumerate(self.spec.outputs)]

    def plan(self) -> LaunchPlan:
        launches = (*self._launches(), *self._additions())
        blocks = max((launch.blocks for launch in launches), default=0)
        if blocks > _LARGEST_GRID:
            raise UnsupportedError(
                f"a kernel over {' x '.join(map(str, self.extents))} elements takes {blocks} blocks"
                f" on a GPU, which launches {_LARGEST_GRID} at most: call it with fewer rows"
            )
        return LaunchPlan(launches, tuple(self.areas))

    def _size(self, result: Result) -> int:
        return math.prod(self.extents[axis] for axis in result.operand.covers)

    def _area(self, count: int, dtype: str) -> tuple[int, int]:
        self.areas.append((count, dtype))
        return AREA, len(self.areas) - 1

    def _target(self, place: int, result: Result) -> tuple[int, int]:
        if self.requests[place] == WRITE:
            return OPERAND, self.first + place
        return self._area(self._size(result), result.operand.dtype)

    def _launches(self) -> Iterator[Launch]:
        spec, extents = self.spec, self.extents
        if spec.columns:
            yield from self._by_columns()
            return
        form, team = _form(spec, extents, _width(spec, extents, aligned=self.aligned))
        kernel = FusedKernel(spec, form)
        inputs = [(OPERAND, number) for number in range(self.first)]
        if is_flat(spec):
            chunks = math.prod(extents) // form.width
            if not chunks:
                return
            threads = min(_FLAT_THREADS, -(-chunks // _WARP) * _WARP)
            blocks = min(-(-chunks // threads), _MOST_BLOCKS)
            numbers = [(NUMBER, extent) for extent in extents]
            yield Launch(kernel, blocks, (threads, 1), (*inputs, *self.targets, *numbers))
            return
        work = _deal(spec, extents, form, team, self.processors)
        targets, finishes = list(self.targets), []
        for place, result in enumerate(spec.outputs):
            if not spec.summed(result):
                continue
            size, stored = self._size(result), result.operand.dtype
            by_slot, by_segment = parts(spec, place)
            count = (work.slots if by_slot else 1) * (work.segments if by_segment else 1)
            if count > 1 or stored != spec.dtype:
                targets[place] = self._area(count * size, spec.dtype)
                if size:
                    ends = (targets[place], self.targets[place])
                    finishes.append(_finish(spec.dtype, stored, *ends, count, size))
            if size and not in_registers(spec, place, form.chunks):
                yield self._fill(stored, targets[place], count * size)
        dealt = [*extents, work.slots, work.per, work.segments, work.reach]
        given = (*inputs, *targets, *((NUMBER, number) for number in dealt))
        yield Launch(kernel, work.blocks, work.threads, given)
        yield from finishes

    def _by_columns(self) -> Iterator[Launch]:
        """Rows that lie side by side; what is summed over is written whole before."""
        spec, targets, sums = written_whole(self.spec), list(self.targets), []
        for place, result in enumerate(self.spec.outputs):
            if self.spec.summed(result):
                summand = spec.outputs[place]
                area = self._area(self._size(summand), self.spec.dtype)
                sums.append((summand, result, area, targets[place]))
                targets[place] = area
        rows, columns = math.prod(self.extents[: spec.row_axis]), self.extents[-1]
        if rows and columns:
            threads, tiles = _side_by_side(
                rows, self.extents[spec.row_axis], columns, self.processors
            )
            given = [(OPERAND, number) for number in range(self.first)]
            given += targets
            numbers = [(NUMBER, number) for number in (*self.extents, tiles)]
            yield Launch(
                FusedKernel(spec, form_of(spec, self.extents)),
                rows * tiles,
                threads,
                (*given, *numbers),
            )
        for summand, result, area, target in sums:
            yield from self._summed(summand, result, area, target)

    def _summed(
        self, summand: Result, result: Result, area: tuple[int, int], target: tuple[int, int]
    ) -> Iterator[Launch]:
        """Add up what was written to an area."""
        kept = sorted(summand.operand.covers)
        axes = tuple(kept.index(a) if a in kept else None for a in result.operand.axes)
        operands = [Operand(self.spec.dtype, tuple(range(len(kept))))]
        outputs = (Result(0, Operand(result.operand.dtype, axes)),)
        spec = KernelSpec(self.spec.dtype, len(kept), 0, tuple(operands), (), outputs)
        space = tuple(self.extents[axis] for axis in kept)
        plan = plan_of(spec, space, aligned=self.aligned, processors=self.processors)
        first = len(self.areas)
        self.areas += plan.areas
        for launch in plan.launches:
            arguments = tuple(
                (area, target)[which] if kind == OPERAND
                else (AREA, first + which) if kind == AREA
                else (kind, which)
                for kind, which in launch.arguments
            )  # fmt: skip
            yield replace(launch, arguments=arguments)

    def _fill(self, stored: str, target: tuple[int, int], size: int) -> Launch:
        threads = _WARP if SIMULATED else _FLAT_THREADS
        blocks = min(-(-size // threads), self.processors * _BLOCKS_PER_PROCESSOR)
        kernel = PartsKernel("fill", self.spec.dtype, stored)
        return Launch(kernel, blocks, (threads, 1), (target, (NUMBER, size)))

    def _additions(self) -> Iterator[Launch]:
        """Add to outputs what was written elsewhere."""
        for place, result in enumerate(self.spec.outputs):
            if self.requests[place] == ADD and self._size(result):
                yield self._addition(place, result)

    def _addition(self, place: int, result: Result) -> Launch:
        stored, computed = (DTYPES[name][0] for name in (result.operand.dtype, self.spec.dtype))
        spec = parse(
            f"{computed}[a] ({stored}[a], {stored}[a]) {{ %2 = add %0 %1; return %2:{stored}[a] }}"
        )
        plan = plan_of(
            spec, (self._size(result),), aligned=self.aligned, processors=self.processors
        )
        (launch,) = plan.launches
        output = (OPERAND, self.first + place)
        numbers = launch.arguments[3:]
        arguments = (output, self.targets[place], output, *numbers)
        return Launch(launch.kernel, launch.blocks, launch.threads, arguments)


def _finish(
    dtype: str, stored: str, source: tuple[int, int], target: tuple[int, int], count: int, size: int
) -> Launch:
    arguments = (source, target, (NUMBER, count), (NUMBER, size))
    threads = (_WARP, 2 if SIMULATED else 32)
    return Launch(PartsKernel("finish", dtype, stored), -(-size // _WARP), threads, arguments)


def written_whole(spec: KernelSpec) -> KernelSpec:
    """A spec whose outputs are not summed over yet, if kernels with columns compute it."""
    if not spec.columns:
        return spec
    outputs = (_summand(spec, result) if spec.summed(result) else result for result in spec.outputs)
    return replace(spec, outputs=tuple(outputs))


def _summand(spec: KernelSpec, result: Result) -> Result:
    """An output before it is summed over, in the dtype of the computation."""
    kept = spec.summed(result) | result.operand.covers
    return Result(result.value, Operand(spec.dtype, tuple(sorted(kept))))


def _side_by_side(
    rows: int, length: int, columns: int, processors: int
) -> tuple[tuple[int, int], int]:
    """Threads of a block, across and along rows, and how many blocks all columns take."""
    across = _WARP
    while across > _FEWEST_ACROSS and columns <= across // 2:
        across //= 2
    tiles = -(-columns // across)
    along = 2 if SIMULATED else 4
    while (
        not SIMULATED
        and along < _MOST_ALONG
        and length > 4 * along
        and rows * tiles * across * along < processors * _THREADS_OF_PROCESSOR
    ):
        along *= 2
    return (across, along), tiles


def form_of(spec: KernelSpec, extents: Sequence[int]) -> Form:
    """How an expanded and collapsed spec walks rows of aligned arrays."""
    return _form(spec, extents, _width(spec, extents, aligned=True))[0]


@dataclass(frozen=True)
class _Work:
    """How rows are dealt out, in the words of :mod:`graphopt.kernels.emit.cuda`."""

    threads: tuple[int, int]
    blocks: int
    slots: int
    per: int
    segments: int
    reach: int


def _width(spec: KernelSpec, extents: Sequence[int], *, aligned: bool) -> int:
    """How many elements to read at once: 16 bytes of the widest array that fills the space."""
    if not aligned or not spec.rank:
        return 1
    row_axis = spec.rank - 1
    operands = [*spec.inputs, *(result.operand for result in spec.outputs)]
    sizes = [
        ITEM_SIZE[kind]
        for kind, operand in zip(storage(spec), operands, strict=True)
        if row_axis in operand.covers
    ]
    width = min(max(ACCESS // max(sizes, default=4), 4), 8)
    while width > 1 and (extents[row_axis] % width or extents[row_axis] < 4 * width):
        width //= 2
    return width if width >= 4 else 1


def _form(spec: KernelSpec, extents: Sequence[int], width: int) -> tuple[Form, int]:
    """The form of a kernel and the threads of a team."""
    if spec.columns:
        return Form(block=True), _WARP
    if is_flat(spec):
        return Form(width, short=math.prod(extents) < _SHORT), 1
    row = -(-extents[-1] // width)  # in chunks
    if not spec.inner:
        # Nothing needs whole rows; threads hold sums over rows if they stay on their columns.
        holds = all(spec.rank - 1 in r.operand.covers for r in spec.outputs if spec.summed(r))
        team = min(_WARP if SIMULATED else _TEAMS_THREADS, -(-max(row, 1) // _WARP) * _WARP)
        return _held(extents, width, int(holds), team, block=True), team
    if row <= _WARP * _CHUNKS_OF_WARP and extents[-1] <= 1024:
        return _held(extents, width, max(1, -(-row // _WARP)), _WARP, block=False), _WARP
    sums = any(spec.summed(result) for result in spec.outputs)
    for chunks in _CHUNKS_OF_BLOCK[: 2 if sums or width > 4 else 3]:
        threads = -(-row // (_WARP * chunks)) * _WARP
        if threads <= _MOST_THREADS // (2 if chunks > 2 else 4):
            return _held(extents, width, chunks, threads, block=True), threads
    return Form(width, 0, block=True), _MOST_THREADS // 2


def _held(extents: Sequence[int], width: int, chunks: int, team: int, *, block: bool) -> Form:
    """A form that keeps ``chunks`` of a row in a thread."""
    full = chunks > 0 and extents[-1] > 0 and extents[-1] % (team * chunks * width) == 0
    return Form(width, chunks, block, full)


def _deal(
    spec: KernelSpec, extents: Sequence[int], form: Form, team: int, processors: int
) -> _Work:
    rows, n = math.prod(extents[:-1]), extents[-1]
    reach = max(n, 1)
    sums = spec.inner and any(spec.summed(result) for result in spec.outputs)
    of_processor = _BLOCKS_WITH_SUMS if sums else _BLOCKS_PER_PROCESSOR
    wanted = processors * of_processor * max(1, _FLAT_THREADS // team)
    if not spec.inner and form.chunks:
        reach = team * form.chunks * form.width
    elif not spec.inner:
        # Few rows are cut, so that there is work for all.
        pieces = min(max(1, wanted // max(rows, 1)), max(1, n // (team * form.width * 4)))
        step = team * form.width
        reach = max(step, -(-n // (pieces * step)) * step)
    segments = max(1, -(-n // reach))
    slots = max(1, rows)
    shared = [
        math.prod(extents[axis] for axis in r.operand.covers)
        for p, r in enumerate(spec.outputs)
        if spec.summed(r) and parts(spec, p)[0]
    ]
    if shared:
        # Each slot has its parts: writing them should not take longer than reading the rest.
        room = max(1, math.prod(extents) // (4 * max(1, sum(shared))))
        slots = min(slots, max(1, wanted // segments), max(room, 1))
    per = -(-rows // slots)
    slots = max(1, -(-rows // per)) if per else 1
    in_block = 1 if form.block else _TEAMS_THREADS // _WARP
    teams = slots * segments
    return _Work((team, in_block), -(-teams // in_block), slots, per, segments, reach)
