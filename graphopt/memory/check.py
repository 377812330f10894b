"""Whether a plan is right, found in another way than it was made."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from graphopt.errors import GraphError, InputError


def check_packing(
    buffers: Any, offsets: Sequence[int], capacity: int | None = None, alignment: int = 1
) -> None:
    """Raise unless no two buffers that are live at once share a byte.

    Lifetimes are swept in order of time with the live buffers sorted by offset, so that it takes
    O(n log n) comparisons for n buffers: one that overlaps any other overlaps a neighbour.

    Args:
        buffers: a :class:`~graphopt.memory.buffers.Buffers`.
        offsets: one per buffer, bytes from the start of the arena.
        capacity: bytes of the arena; default: as large as it has to be.
        alignment: what offsets must be multiples of.

    Raises:
        InputError: there is not one offset per buffer.
        GraphError: two buffers overlap (both are named), or one lies outside the arena or is not
            aligned.
    """
    if len(offsets) != len(buffers.ids):
        raise InputError(
            f"{len(offsets)} offsets for {len(buffers.ids)} buffers; give one for each"
        )
    begins, ends = [int(offset) for offset in offsets], []
    for name, begin, size in zip(buffers.ids, begins, buffers.size, strict=True):
        ends.append(begin + int(size))
        if begin < 0 or begin % alignment:
            raise GraphError(f"buffer {name!r} lies at {begin}, no multiple of {alignment}")
        if capacity is not None and ends[-1] > capacity:
            raise GraphError(f"buffer {name!r} ends at {ends[-1]}, above {capacity} bytes")
    events = [(int(t), 1, i) for i, t in enumerate(buffers.lower)]
    events += [(int(t), 0, i) for i, t in enumerate(buffers.upper)]
    live: list[tuple[int, int]] = []
    for _, is_start, index in sorted(events):
        key = (begins[index], index)
        at = bisect.bisect_left(live, key)
        if not is_start:
            del live[at]
            continue
        if at < len(live) and live[at][0] < ends[index]:
            raise _overlap(buffers, index, live[at][1])
        if at and ends[live[at - 1][1]] > begins[index]:
            raise _overlap(buffers, live[at - 1][1], index)
        live.insert(at, key)


def _overlap(buffers: Any, one: int, other: int) -> GraphError:
    return GraphError(
        f"buffers {buffers.ids[one]!r} and {buffers.ids[other]!r} are live at once and overlap"
    )
