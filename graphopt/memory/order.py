"""Orders of a forward run that need less memory at the peak."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from graphopt.errors import InputError
from graphopt.memory.liveness import liveness
from graphopt.memory.schedule import Schedule

Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Order:
    """The best order found.

    Attributes:
        operations: numbers of the schedule's operations, in the order to run them.
        peak: bytes live at its peak.
        given_peak: those of the order that was given.
        method: what found it; ``given`` if nothing is better.
        peaks: bytes at the peak by method.
    """

    operations: Numbers
    peak: int
    given_peak: int
    method: str
    peaks: Mapping[str, int]


def best_order(schedule: Schedule, *, inplace: bool = True) -> Order:
    """Try several orders and keep the one with the lowest peak. Near-linear.

    Operators that are impure, or read what one of those writes, keep their order.

    Args:
        schedule: a forward run.
        inplace: let outputs take over what dies, as in :func:`liveness`.
    """
    tried = _orders(schedule)
    peaks = {name: _peak(schedule, order, inplace=inplace) for name, order in tried.items()}
    best = min(peaks, key=peaks.__getitem__)  # the first of equals: rather the given order
    return Order(tried[best], peaks[best], peaks["given"], best, peaks)


def orders(schedule: Schedule) -> list[Numbers]:
    """All orders that :func:`best_order` tries, each once, by their peaks."""
    found = dict.fromkeys(_orders(schedule).values())
    return sorted(found, key=lambda order: _peak(schedule, order))


def _peak(schedule: Schedule, order: Numbers, *, inplace: bool = True) -> int:
    operations = tuple(schedule.operations[number] for number in order)
    return liveness(replace(schedule, operations=operations), inplace=inplace).peak


def _orders(schedule: Schedule) -> dict[str, Numbers]:
    graph = _Dependencies(schedule)
    return {name: method(graph) for name, method in _METHODS.items()}


def reordered(schedule: Schedule, order: Iterable[int]) -> Schedule:
    """The schedule in another order.

    Raises:
        InputError: the order leaves an operation out, or runs one before what it has to follow.
    """
    order = tuple(order)
    place = {number: at for at, number in enumerate(order)}
    count = len(schedule.operations)
    if len(order) != count or any(number not in place for number in range(count)):
        raise InputError(f"an order of {count} operations has to name each of them once")
    graph = _Dependencies(schedule)
    for number, before in enumerate(graph.before):
        for other in before:
            if place[other] > place[number]:
                late, early = schedule.operations[other].name, schedule.operations[number].name
                raise InputError(f"{early!r} cannot run before {late!r}")
    operations = tuple(
        replace(op, after=tuple(place[other] for other in op.after))
        for op in (schedule.operations[number] for number in order)
    )
    return replace(schedule, operations=operations)


class _Dependencies:
    """What each operation has to follow, and the storage it makes and reads.

    Views share the storage of what they show. Storage outside does not count.
    """

    def __init__(self, schedule: Schedule) -> None:
        operations, tensors = schedule.operations, schedule.tensors
        count = len(operations)
        storage = [-1 if tensor.outside else at for at, tensor in enumerate(tensors)]
        writer = [-1] * len(tensors)
        self.size = [tensor.nbytes for tensor in tensors]
        self.escapes = [tensor.escapes for tensor in tensors]
        self.before: list[Numbers] = []
        self.reads: list[Numbers] = []
        self.makes: list[Numbers] = []
        self.readers: list[list[int]] = [[] for _ in tensors]
        last_ordered = -1
        for at, op in enumerate(operations):
            if op.view and op.reads and op.writes:
                storage[op.writes[0]] = storage[op.reads[0]]
            before = {writer[number]: None for number in op.reads} | dict.fromkeys(op.after)
            if op.ordered:
                before[last_ordered] = None
                last_ordered = at
            before.pop(-1, None)
            self.before.append(tuple(before))
            for number in op.writes:
                writer[number] = at
                if storage[number] >= 0 and tensors[number].escapes:
                    self.escapes[storage[number]] = True
            read = dict.fromkeys(storage[number] for number in op.reads)
            read.pop(-1, None)
            made = dict.fromkeys(storage[number] for number in op.writes)
            made.pop(-1, None)
            self.reads.append(tuple(read))
            self.makes.append(tuple(number for number in made if number not in read))
            for number in read:
                self.readers[number].append(at)
        self.after: list[list[int]] = [[] for _ in range(count)]
        for at, numbers in enumerate(self.before):
            for other in numbers:
                self.after[other].append(at)

    def __len__(self) -> int:
        return len(self.before)

    def made(self, operation: int) -> int:
        """Bytes of the storage an operation makes."""
        return sum(self.size[number] for number in self.makes[operation])


def _given(graph: _Dependencies) -> Numbers:
    return tuple(range(len(graph)))


def _demanding_first(graph: _Dependencies) -> Numbers:
    """Depth first; of a node's inputs, first the one whose peak is highest above what it leaves.

    That is best for trees whose nodes need all their inputs at once (Liu 1987).
    """
    peaks: list[int] = []
    held = [graph.made(at) for at in range(len(graph))]
    surplus: list[int] = []
    for at, before in enumerate(graph.before):
        peak = running = 0
        for other in sorted(before, key=lambda other: -surplus[other]):
            peak = max(peak, running + peaks[other])
            running += held[other]
        peaks.append(max(peak, running + held[at]))
        surplus.append(peaks[at] - held[at])
    return _depth_first(graph, lambda other: -surplus[other])


def _small_first(graph: _Dependencies) -> Numbers:
    """Depth first, inputs that leave little before those that leave much."""
    return _depth_first(graph, graph.made)


def _backwards(graph: _Dependencies) -> Numbers:
    """Depth first, the last input first."""
    return _depth_first(graph, lambda other: -other)


def _depth_first(graph: _Dependencies, key: Callable[[int], int]) -> Numbers:
    done = [False] * len(graph)
    order: list[int] = []
    sinks = [at for at in range(len(graph)) if not graph.after[at]]
    for sink in sorted(sinks, key=key):
        stack = [(sink, iter(sorted(graph.before[sink], key=key)))]
        while stack:
            at, pending = stack[-1]
            following = next((other for other in pending if not done[other]), None)
            if following is None:
                stack.pop()
                if not done[at]:
                    done[at] = True
                    order.append(at)
            else:
                stack.append((following, iter(sorted(graph.before[following], key=key))))
    return tuple(order)


def _thrifty(graph: _Dependencies) -> Numbers:
    """Of what can run, that which adds least to what is live; the latest to become ready first."""
    return _greedy_forward(graph, latest=True)


def _thrifty_in_order(graph: _Dependencies) -> Numbers:
    """Of what can run, that which adds least to what is live; the first in the order given."""
    return _greedy_forward(graph, latest=False)


def _greedy_forward(graph: _Dependencies, *, latest: bool) -> Numbers:
    waiting = [len(before) for before in graph.before]
    unread = [len(readers) for readers in graph.readers]
    left = [sum(readers) for readers in graph.readers]  # the last reader itself, once it is one
    score = [graph.made(at) for at in range(len(graph))]

    def dies_with_last(storage: int) -> None:
        if unread[storage] == 1 and not graph.escapes[storage]:
            score[left[storage]] -= graph.size[storage]

    for storage in range(len(unread)):
        dies_with_last(storage)
    heap: list[tuple[int, int, int]] = []
    done = [False] * len(graph)
    ticks = 0

    def push(at: int) -> None:
        nonlocal ticks
        ticks += 1
        heapq.heappush(heap, (score[at], -ticks if latest else at, at))

    for at, count in enumerate(waiting):
        if not count:
            push(at)
    order: list[int] = []
    while heap:
        known, _, at = heapq.heappop(heap)
        if done[at] or known != score[at]:
            continue
        done[at] = True
        order.append(at)
        for storage in graph.reads[at]:
            unread[storage] -= 1
            left[storage] -= at
            if unread[storage] == 1:
                dies_with_last(storage)
                last = left[storage]
                if not waiting[last] and not done[last]:
                    push(last)
        for other in graph.after[at]:
            waiting[other] -= 1
            if not waiting[other]:
                push(other)
    return tuple(order)


def _from_the_end(graph: _Dependencies) -> Numbers:
    """Built from the last step to the first: what keeps least alive before it runs last."""
    waiting = [len(after) for after in graph.after]
    live = list(graph.escapes)
    score = [0] * len(graph)
    for at in range(len(graph)):
        needs = sum(graph.size[number] for number in graph.reads[at] if not live[number])
        score[at] = needs - graph.made(at)
    heap = [(score[at], -at, at) for at, count in enumerate(waiting) if not count]
    heapq.heapify(heap)
    done = [False] * len(graph)
    order: list[int] = []
    while heap:
        known, _, at = heapq.heappop(heap)
        if done[at] or known != score[at]:
            continue
        done[at] = True
        order.append(at)
        for storage in graph.reads[at]:
            if live[storage]:
                continue
            live[storage] = True
            for reader in graph.readers[storage]:
                score[reader] -= graph.size[storage]
                if not waiting[reader] and not done[reader]:
                    heapq.heappush(heap, (score[reader], -reader, reader))
        for other in graph.before[at]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(heap, (score[other], -other, other))
    return tuple(reversed(order))


_METHODS: Mapping[str, Callable[[_Dependencies], Numbers]] = {
    "given": _given,
    "demanding inputs first": _demanding_first,
    "small inputs first": _small_first,
    "last inputs first": _backwards,
    "least growth": _thrifty,
    "least growth, in order": _thrifty_in_order,
    "least growth from the end": _from_the_end,
}
