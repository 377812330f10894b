"""Which tensors are live when, and which of them share storage anyhow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphopt.cached import cached_property
from graphopt.memory.buffers import Buffers, Integers
from graphopt.memory.schedule import Operation, Schedule, Tensor


@dataclass(frozen=True, eq=False)
class Liveness:
    """Buffers with their lifetimes, in steps of the schedule.

    Attributes:
        schedule: what runs.
        buffers: one per storage; live from the step that first writes it up to the one after the
            step that reads it last. What escapes lives to the end.
        members: numbers of the tensors in each buffer, in the order they are written.
        buffer_of: buffer of each tensor; -1 for those outside and for empty ones.
    """

    schedule: Schedule
    buffers: Buffers
    members: tuple[tuple[int, ...], ...]
    buffer_of: tuple[int, ...]

    @cached_property
    def live_bytes(self) -> Integers:
        """Bytes that are live at each step."""
        changes = np.zeros(len(self.schedule.operations) + 1, np.int64)
        np.add.at(changes, self.buffers.lower, self.buffers.size)
        np.subtract.at(changes, self.buffers.upper, self.buffers.size)
        return np.cumsum(changes)[:-1]

    @property
    def peak(self) -> int:
        """Bytes of the largest set of buffers that are live at once: no plan takes less."""
        return int(self.live_bytes.max(initial=0))

    @property
    def peak_step(self) -> int:
        """The first step at which that many are live; 0 if there are none."""
        return int(np.argmax(self.live_bytes)) if len(self.live_bytes) else 0

    def live_at(self, step: int) -> tuple[int, ...]:
        """Buffers that are live at a step, the largest first."""
        found = np.flatnonzero((self.buffers.lower <= step) & (step < self.buffers.upper))
        return tuple(int(b) for b in found[np.argsort(-self.buffers.size[found], kind="stable")])

    def tensor_at(self, buffer: int, step: int) -> Tensor:
        """What a buffer holds at a step: the tensor written last."""
        held = [n for n in self.members[buffer] if self._written[n] <= step]
        return self.schedule.tensors[(held or self.members[buffer])[-1]]

    @cached_property
    def _written(self) -> dict[int, int]:
        return {n: at for at, op in enumerate(self.schedule.operations) for n in op.writes}


def liveness(schedule: Schedule, *, inplace: bool = True) -> Liveness:
    """Lifetimes of all storage. Near-linear: 10,000 operators take a fraction of a second.

    Args:
        schedule: what runs, in order.
        inplace: let an output take over the storage of an input that dies there, where the
            operator allows it. Views share storage in any case.
    """
    return _Builder(schedule, inplace).build()


class _Builder:
    def __init__(self, schedule: Schedule, inplace: bool) -> None:
        self._schedule, self._inplace = schedule, inplace
        self._last = _last_reads(schedule)
        self._buffer_of = [-1] * len(schedule.tensors)
        self._lower: list[int] = []
        self._upper: list[int] = []
        self._size: list[int] = []
        self._members: list[list[int]] = []

    def build(self) -> Liveness:
        for at, operation in enumerate(self._schedule.operations):
            self._run(at, operation)
        tensors = self._schedule.tensors
        end = len(self._schedule.operations)
        ids = _unique([tensors[members[0]].name for members in self._members])
        return Liveness(
            self._schedule,
            Buffers(ids, self._lower, np.minimum(self._upper, end), self._size),
            tuple(map(tuple, self._members)),
            tuple(self._buffer_of),
        )

    def _run(self, at: int, operation: Operation) -> None:
        tensors, taken = self._schedule.tensors, set[int]()
        for position, written in enumerate(operation.writes):
            tensor = tensors[written]
            if operation.view and position == 0 and operation.reads:
                buffer = self._buffer_of[operation.reads[0]]
                if buffer < 0:
                    continue  # by another name, it still is the caller's
            elif tensor.outside:
                continue
            else:
                buffer = self._dying(at, operation, position, taken) if self._inplace else -1
            if not tensor.nbytes:
                continue
            if buffer < 0:
                buffer = len(self._size)
                self._lower.append(at)
                self._upper.append(at + 1)
                self._size.append(tensor.nbytes)
                self._members.append([])
            taken.add(buffer)
            self._buffer_of[written] = buffer
            self._members[buffer].append(written)
            self._upper[buffer] = max(self._upper[buffer], self._last[written] + 1)

    def _dying(self, at: int, operation: Operation, output: int, taken: set[int]) -> int:
        """A buffer that dies here, as large as the output, that it may take over; or -1."""
        nbytes = self._schedule.tensors[operation.writes[output]].nbytes
        allowed = {position for position, to in operation.pairs if to == output}
        for position in sorted(allowed):
            if position >= len(operation.reads):
                continue
            buffer = self._buffer_of[operation.reads[position]]
            if buffer < 0 or buffer in taken or self._size[buffer] != nbytes:
                continue
            if self._upper[buffer] <= at + 1 and all(
                other in allowed
                for other, read in enumerate(operation.reads)
                if self._buffer_of[read] == buffer
            ):
                return buffer
        return -1


def _last_reads(schedule: Schedule) -> Sequence[int]:
    """Last step that needs each tensor: the one that writes it if none reads it."""
    last = [0] * len(schedule.tensors)
    for at, operation in enumerate(schedule.operations):
        for number in (*operation.reads, *operation.writes):
            last[number] = at
    end = len(schedule.operations)  # a step later than any that could take its storage over
    for number, tensor in enumerate(schedule.tensors):
        if tensor.escapes:
            last[number] = end
    return last


def _unique(names: Sequence[str]) -> list[str]:
    """The names; those that are empty or occur again get their number behind them."""
    taken = set(names)
    used: set[str] = set()
    found = []
    for number, name in enumerate(names):
        unique = name
        if not name or name in used:
            unique = f"{name}#{number}"
            while unique in taken:
                unique += "#"
            taken.add(unique)
        used.add(unique)
        found.append(unique)
    return found
