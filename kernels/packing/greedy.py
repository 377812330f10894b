"""Place buffers one after the other, each as low as it goes among those placed before."""

from __future__ import annotations

from graphopt.kernels.packing import Integers
from graphopt.kernels.packing.compiled import compiled


@compiled
def place(
    order: Integers,
    size: Integers,
    first: Integers,
    last: Integers,
    best_fit: bool,
    limit: int,
    offsets: Integers,
    scratch: Integers,
) -> int:
    """Place buffers in the given order and return the arena, or ``limit`` if that is reached.

    What is placed is kept sorted by offset in four arrays, and read from the bottom until a gap
    among the buffers live at the same time is large enough. That is quadratic, but reads memory in
    sequence: tens of thousands of buffers take seconds, where lists of neighbours take minutes and
    gigabytes, because in training most buffers are live together.

    Args:
        order: which buffer is placed first, second ...
        size: of each buffer.
        first: section in which its lifetime starts.
        last: section before which it ends.
        best_fit: take the gap that is filled best, not the lowest.
        limit: an arena that is of no use.
        offsets: results, -1 for buffers not placed.
        scratch: int64 ``[4, n]``.
    """
    n = len(order)
    bottoms, tops, begins, ends = scratch[0], scratch[1], scratch[2], scratch[3]
    offsets[:] = -1
    arena = 0
    for count in range(n):
        b = order[count]
        need, begin, end = size[b], first[b], last[b]
        top, at, gap = 0, -1, 1 << 62
        for i in range(count):
            if begins[i] < end and ends[i] > begin:
                room = bottoms[i] - top
                if need <= room < gap:
                    at, gap = top, room
                    if not best_fit:
                        break
                if tops[i] > top:
                    top = tops[i]
        if at < 0:
            at = top
        offsets[b] = at
        arena = max(arena, at + need)
        if arena >= limit:
            return limit
        i = count
        while i > 0 and bottoms[i - 1] > at:
            bottoms[i] = bottoms[i - 1]
            tops[i] = tops[i - 1]
            begins[i] = begins[i - 1]
            ends[i] = ends[i - 1]
            i -= 1
        bottoms[i], tops[i], begins[i], ends[i] = at, at + need, begin, end
    return arena
