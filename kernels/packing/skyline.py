"""Depth-first search for a plan below given limits, by what comes next on the skyline.

The skyline is the height that placed buffers reach in each section. It is raised wherever no buffer
left can lie that low: a buffer lies above the skyline in all of its sections. A valley is a run of
sections of one height between higher ones, or walls that no buffer left crosses. In a section of a
valley there are as many cases as there are buffers that fit the valley and cover the section, one
more if it may stay empty at that height; together they are all cases, and they exclude each other.
The search branches where there are the fewest.

A section whose skyline and buffers left exceed the limit ends a branch. What ended it is kept as a
run of sections; a decision that changed nothing there is not varied but taken back, which
keeps parts of the problem that have nothing to do with each other from multiplying. That placements
on the skyline in canonical order suffice, and the check of each section, are from M. D. Moffitt,
"MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023.
"""

from __future__ import annotations

from typing import NamedTuple

from graphopt.kernels.packing import Integers
from graphopt.kernels.packing.compiled import compiled, part

#: What a call of :func:`search` ends with: a plan; the proof that there is none; all nodes used
#: up; no memory left for what is to be taken back.
FOUND, EXHAUSTED, PAUSED, FULL = range(4)

#: A section stays empty: stands for a buffer among the cases of a level.
GAP = -1

#: More than any height.
_HUGE = 1 << 62

#: Columns of ``State.section``: the skyline; the first section on which it depends, and the one
#: after the last; units of buffers left; how many of them are in the next section too; whether the
#: skyline has to be computed again; where the section's buffers begin in ``State.listed``.
HEIGHT, LOW, HIGH, LEFT, CROSSING, DIRTY, AT = range(7)

#: Columns of ``State.buffer``: units; first section; section after the last; what its end must not
#: exceed; the higher, the earlier it is tried; its place, or -1 while it is left; the lowest place
#: it can have while it is left, and the section that has that height.
SIZE, FIRST, LAST, LIMIT, PRIORITY, OFFSET, TOP, WITNESS = range(8)

#: Columns of ``State.level``: how many changes there were before its decision; the section in which
#: it decides, and the height up to which that can stay empty (-1: it cannot); its first case, the
#: next, and the end of the cases; the run of sections that all its failures depend on.
BEFORE_HEIGHTS, BEFORE_TOPS, SECTION, VALUE, BEGIN, NEXT, END, WHY_LOW, WHY_HIGH = range(9)

#: Entries of ``State.control``: the level; how many changes there are; the run of sections that the
#: last failure depends on; decisions so far; whether the level's last decision was taken back.
DEPTH, HEIGHTS, TOPS, FAIL_LOW, FAIL_HIGH, NODES, RETREATED = range(7)


class State(NamedTuple):
    """Problem and progress, int64; few arrays, since numba takes longer the more there are.

    Attributes:
        section: a row for each section, and one more that ends the last list.
        buffer: a row for each buffer.
        listed: buffers by section, one list after another.
        heights: rows section, skyline and what it depends on, before a change.
        tops: rows buffer, lowest place and witness, before a change.
        level: a row for each decision.
        cases: buffers to try, one list of cases after another.
        control: scalars.
        scratch: two values per section, and two.
    """

    section: Integers
    buffer: Integers
    listed: Integers
    heights: Integers
    tops: Integers
    level: Integers
    cases: Integers
    control: Integers
    scratch: Integers


@part
def _set_height(state: State, s: int, height: int, low: int, high: int) -> None:
    count = state.control[HEIGHTS]
    row = state.heights[count]
    row[0], row[1], row[2], row[3] = (
        s,
        state.section[s, HEIGHT],
        state.section[s, LOW],
        state.section[s, HIGH],
    )
    state.control[HEIGHTS] = count + 1
    state.section[s, HEIGHT], state.section[s, LOW], state.section[s, HIGH] = height, low, high


@part
def _fail(state: State, low: int, high: int) -> bool:
    state.control[FAIL_LOW], state.control[FAIL_HIGH] = low, high
    return False


@part
def _lift(state: State, begin: int, end: int) -> bool:
    """Raise the buffers left over sections that have become higher; false if one is too high."""
    for t in range(begin, end):
        height = state.section[t, HEIGHT]
        for i in range(state.section[t, AT], state.section[t + 1, AT]):
            e = state.listed[i]
            if state.buffer[e, OFFSET] >= 0 or state.buffer[e, TOP] >= height:
                continue
            count = state.control[TOPS]
            row = state.tops[count]
            row[0], row[1], row[2] = e, state.buffer[e, TOP], state.buffer[e, WITNESS]
            state.control[TOPS] = count + 1
            before = state.buffer[e, TOP]
            state.buffer[e, TOP], state.buffer[e, WITNESS] = height, t
            if height + state.buffer[e, SIZE] > state.buffer[e, LIMIT]:
                return _fail(state, state.section[t, LOW], state.section[t, HIGH])
            for s in range(state.buffer[e, FIRST], state.buffer[e, LAST]):
                if state.section[s, HEIGHT] == before:
                    state.section[s, DIRTY] = 1
    return True


@part
def _settle(state: State, capacity: int) -> bool:
    """Compute dirty sections again; false if one of them exceeds the capacity."""
    for s in range(len(state.section) - 1):
        if not state.section[s, DIRTY]:
            continue
        state.section[s, DIRTY] = 0
        if state.section[s, LEFT] == 0:
            continue
        least, low, high = _HUGE, s, s + 1
        for i in range(state.section[s, AT], state.section[s + 1, AT]):
            e = state.listed[i]
            if state.buffer[e, OFFSET] < 0:
                w = state.buffer[e, WITNESS]
                least = min(least, state.buffer[e, TOP])
                low, high = min(low, state.section[w, LOW]), max(high, state.section[w, HIGH])
        if least > state.section[s, HEIGHT]:
            _set_height(state, s, least, low, high)
        if state.section[s, HEIGHT] + state.section[s, LEFT] > capacity:
            return _fail(state, state.section[s, LOW], state.section[s, HIGH])
    return True


@part
def _changed(state: State, capacity: int, begin: int, end: int) -> bool:
    """Draw conclusions from sections that have become higher."""
    fine = _lift(state, begin, end) and _settle(state, capacity)
    if not fine:
        state.section[:, DIRTY] = 0
    return fine


@part
def _put(state: State, capacity: int, b: int, offset: int) -> bool:
    """Place a buffer; false if that cannot be completed."""
    state.buffer[b, OFFSET] = offset
    begin, end = state.buffer[b, FIRST], state.buffer[b, LAST]
    for t in range(begin, end):
        state.section[t, LEFT] -= state.buffer[b, SIZE]
        if t + 1 < end:
            state.section[t, CROSSING] -= 1
        _set_height(state, t, offset + state.buffer[b, SIZE], t, t + 1)
        state.section[t, DIRTY] = 1
    return _changed(state, capacity, begin, end)


@part
def _leave(state: State, capacity: int, s: int, height: int) -> bool:
    """Leave a section empty below a height; false if that cannot be completed."""
    _set_height(state, s, height, s, s + 1)
    state.section[s, DIRTY] = 1
    return _changed(state, capacity, s, s + 1)


@part
def _undo(state: State, level: int) -> None:
    """Take back the decision of a level, if there is one."""
    mark, control = state.level[level], state.control
    if mark[NEXT] > mark[BEGIN]:
        b = state.cases[mark[NEXT] - 1]
        if b != GAP:
            state.buffer[b, OFFSET] = -1
            for t in range(state.buffer[b, FIRST], state.buffer[b, LAST]):
                state.section[t, LEFT] += state.buffer[b, SIZE]
                if t + 1 < state.buffer[b, LAST]:
                    state.section[t, CROSSING] += 1
    while control[HEIGHTS] > mark[BEFORE_HEIGHTS]:
        control[HEIGHTS] -= 1
        row = state.heights[control[HEIGHTS]]
        s = row[0]
        state.section[s, HEIGHT], state.section[s, LOW], state.section[s, HIGH] = (
            row[1],
            row[2],
            row[3],
        )
    while control[TOPS] > mark[BEFORE_TOPS]:
        control[TOPS] -= 1
        row = state.tops[control[TOPS]]
        state.buffer[row[0], TOP], state.buffer[row[0], WITNESS] = row[1], row[2]


@part
def _valley_end(state: State, s: int) -> int:
    """The section after the run of one height that begins here; negative if it is no valley."""
    e = s + 1
    while (
        e < len(state.section) - 1
        and state.section[e - 1, CROSSING]
        and state.section[e, HEIGHT] == state.section[s, HEIGHT]
    ):
        e += 1
    is_low = (
        e == len(state.section) - 1
        or not state.section[e - 1, CROSSING]
        or (state.section[e, HEIGHT] > state.section[s, HEIGHT])
    )
    if (
        s
        and state.section[s - 1, CROSSING]
        and state.section[s - 1, HEIGHT] <= state.section[s, HEIGHT]
    ):
        is_low = False
    return e if is_low else -e


@part
def _supports(state: State, begin: int, end: int) -> None:
    """Per section of a valley, the least height of what touches the valley and is not there.

    If what is in the section does not lie on the skyline, it lies on something of that kind.
    """
    n, scratch = end - begin, state.scratch
    scratch[: 2 * n + 2] = _HUGE
    for s in range(begin, end):
        for i in range(state.section[s, AT], state.section[s + 1, AT]):
            e = state.listed[i]
            if state.buffer[e, OFFSET] >= 0 or (state.buffer[e, FIRST] < s and s > begin):
                continue
            base = state.section[s, HEIGHT]
            if state.buffer[e, FIRST] < begin:
                base = max(base, state.section[begin - 1, HEIGHT])
            if state.buffer[e, LAST] > end:
                base = max(base, state.section[end, HEIGHT])
            after = state.buffer[e, LAST] - begin
            if after < n:
                scratch[after] = min(scratch[after], base + state.buffer[e, SIZE])
            before = n + 1 + state.buffer[e, FIRST] - begin
            if before > n + 1:
                scratch[before] = min(scratch[before], base + state.buffer[e, SIZE])
    for k in range(1, n):
        scratch[k] = min(scratch[k], scratch[k - 1])
        back = 2 * n - k
        scratch[back] = min(scratch[back], scratch[back + 1])
    for k in range(n - 1):
        scratch[k] = min(scratch[k], scratch[n + 2 + k])


@part
def _choose(state: State, capacity: int, mark: Integers) -> bool:
    """Find the section with the fewest cases; false if all buffers are placed."""
    fewest, tightest = _HUGE, _HUGE
    begin = 0
    while begin < len(state.section) - 1:
        end = _valley_end(state, begin)
        if end < 0 or state.section[begin, LEFT] == 0:
            begin = abs(end)
            continue
        height = state.section[begin, HEIGHT]
        _supports(state, begin, end)
        for s in range(begin, end):
            count, least = 0, _HUGE
            for i in range(state.section[s, AT], state.section[s + 1, AT]):
                e = state.listed[i]
                if state.buffer[e, OFFSET] < 0:
                    if state.buffer[e, TOP] == height:
                        count += 1
                        least = min(least, state.scratch[s - begin])
                    else:
                        least = min(least, state.buffer[e, TOP])
            slack = capacity - state.section[s, LEFT] - height
            is_open = least - height <= slack
            count += is_open
            if count < fewest or (count == fewest and slack < tightest):
                fewest, tightest = count, slack
                mark[SECTION], mark[WHY_LOW], mark[WHY_HIGH] = s, begin, end
                mark[VALUE] = least if is_open else -1
        begin = end
    return fewest < _HUGE


@part
def _explain(state: State, mark: Integers) -> None:
    """Widen the run of a level's valley to all that its cases depend on."""
    begin, end, s = mark[WHY_LOW], mark[WHY_HIGH], mark[SECTION]
    low, high = begin, end
    if begin and state.section[begin - 1, CROSSING]:
        low = begin - 1
    if end < len(state.section) - 1 and state.section[end - 1, CROSSING]:
        high = end + 1
    for t in range(low, high):
        mark[WHY_LOW] = min(mark[WHY_LOW], state.section[t, LOW])
        mark[WHY_HIGH] = max(mark[WHY_HIGH], state.section[t, HIGH])
    mark[WHY_LOW], mark[WHY_HIGH] = min(mark[WHY_LOW], low), max(mark[WHY_HIGH], high)
    for i in range(state.section[s, AT], state.section[s + 1, AT]):
        e = state.listed[i]
        if state.buffer[e, OFFSET] < 0 and state.buffer[e, TOP] > state.section[s, HEIGHT]:
            w = state.buffer[e, WITNESS]
            mark[WHY_LOW] = min(mark[WHY_LOW], state.section[w, LOW])
            mark[WHY_HIGH] = max(mark[WHY_HIGH], state.section[w, HIGH])


@part
def _open(state: State, mark: Integers, at: int) -> None:
    """List the cases of a level: buffers by falling priority, of equal ones the first."""
    s = mark[SECTION]
    height, count = state.section[s, HEIGHT], at
    for i in range(state.section[s, AT], state.section[s + 1, AT]):
        e = state.listed[i]
        if state.buffer[e, OFFSET] >= 0 or state.buffer[e, TOP] != height:
            continue
        is_new = True
        k = count
        for j in range(at, count):
            c = state.cases[j]
            if (
                state.buffer[c, FIRST] == state.buffer[e, FIRST]
                and state.buffer[c, LAST] == state.buffer[e, LAST]
                and state.buffer[c, SIZE] == state.buffer[e, SIZE]
                and state.buffer[c, LIMIT] == state.buffer[e, LIMIT]
            ):
                is_new = False
        if not is_new:
            continue
        while k > at and state.buffer[state.cases[k - 1], PRIORITY] < state.buffer[e, PRIORITY]:
            state.cases[k] = state.cases[k - 1]
            k -= 1
        state.cases[k] = e
        count += 1
    if mark[VALUE] >= 0:
        state.cases[count] = GAP
        count += 1
    mark[BEGIN], mark[NEXT], mark[END] = at, at, count


@part
def _retreat(state: State) -> bool:
    """Take back what has failed, and all that it does not depend on; false if nothing is left."""
    control = state.control
    while control[DEPTH] >= 0:
        level = control[DEPTH]
        mark = state.level[level]
        b = state.cases[mark[NEXT] - 1]
        begin, end = mark[SECTION], mark[SECTION] + 1
        if b != GAP:
            begin, end = state.buffer[b, FIRST], state.buffer[b, LAST]
        _undo(state, level)
        low, high = control[FAIL_LOW], control[FAIL_HIGH]
        if low < end and begin < high:
            mark[WHY_LOW], mark[WHY_HIGH] = min(low, mark[WHY_LOW]), max(high, mark[WHY_HIGH])
            if mark[NEXT] < mark[END]:
                return True
            control[FAIL_LOW], control[FAIL_HIGH] = mark[WHY_LOW], mark[WHY_HIGH]
        control[DEPTH] = level - 1
    return False


@part
def _is_full(state: State) -> bool:
    """Whether one more decision might not fit the memory."""
    n, m, level = len(state.buffer), len(state.section) - 1, state.control[DEPTH]
    return bool(
        level + 1 >= len(state.level)
        or (level >= 0 and state.level[level, END] + n + 1 > len(state.cases))
        or state.control[HEIGHTS] + 2 * m > len(state.heights)
        or state.control[TOPS] + n > len(state.tops)
    )


@compiled
def search(state: State, capacity: int, nodes: int) -> int:
    """Go on searching for a number of decisions, and tell how that ended."""
    control = state.control
    for _ in range(nodes):
        control[NODES] += 1
        if _is_full(state):
            return FULL
        if not control[RETREATED]:
            level = control[DEPTH] + 1
            mark = state.level[level]
            if not _choose(state, capacity, mark):
                return FOUND
            _explain(state, mark)
            _open(state, mark, state.level[level - 1, END] if level else 0)
            mark[BEFORE_HEIGHTS], mark[BEFORE_TOPS] = control[HEIGHTS], control[TOPS]
            control[DEPTH] = level
            if mark[BEGIN] == mark[END]:
                control[FAIL_LOW], control[FAIL_HIGH] = mark[WHY_LOW], mark[WHY_HIGH]
                control[DEPTH] = level - 1
                if not _retreat(state):
                    return EXHAUSTED
        mark = state.level[control[DEPTH]]
        b, s = state.cases[mark[NEXT]], mark[SECTION]
        mark[NEXT] += 1
        if b == GAP:
            fine = _leave(state, capacity, s, mark[VALUE])
        else:
            fine = _put(state, capacity, b, state.section[s, HEIGHT])
        control[RETREATED] = not fine
        if not fine and not _retreat(state):
            return EXHAUSTED
    return PAUSED
