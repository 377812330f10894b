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

import numpy as np

from graphopt.kernels.packing import Integers
from graphopt.kernels.packing.compiled import compiled

#: What a call of :func:`search` ends with.
FOUND, EXHAUSTED, PAUSED = 0, 1, 2

#: A section stays empty: stands for a buffer among the cases of a level.
GAP = -1

_LEVEL, _HEIGHTS, _TOPS, _LOW, _HIGH, _NODES, _RETREATED = range(7)


class Problem(NamedTuple):
    """What is to be packed; lists of buffers are ``buffers[at[s] : at[s + 1]]`` by section."""

    size: Integers
    first: Integers
    last: Integers
    limit: Integers
    at: Integers
    buffers: Integers


class State(NamedTuple):
    """Where the search stands.

    Attributes:
        height: skyline by section.
        low: first section on which the height depends.
        high: section after the last.
        left: units of buffers left, by section.
        crossing: buffers left that are in this section and the next.
        offset: of each buffer, -1 while it is left.
        top: lowest offset of a buffer left.
        witness: section that has this height.
        old_heights: rows section, height, low, high before a change.
        old_tops: rows buffer, top, witness before a change.
        mark: rows by level: lengths of the two, next case, cases' end, section, run of sections
            that explains failures.
        cases: buffers to try, levels one after another.
        control: scalars, by the indices above.
        dirty: whether a section's height must be computed again.
    """

    height: Integers
    low: Integers
    high: Integers
    left: Integers
    crossing: Integers
    offset: Integers
    top: Integers
    witness: Integers
    old_heights: Integers
    old_tops: Integers
    mark: Integers
    cases: Integers
    control: Integers
    dirty: Integers


_MARK_HEIGHTS, _MARK_TOPS, _NEXT, _END, _SECTION, _WHY_LOW, _WHY_HIGH, _VALUE, _BEGIN = range(9)


@compiled
def _set_height(state: State, s: int, height: int, low: int, high: int) -> None:
    count = state.control[_HEIGHTS]
    row = state.old_heights[count]
    row[0], row[1], row[2], row[3] = s, state.height[s], state.low[s], state.high[s]
    state.control[_HEIGHTS] = count + 1
    state.height[s], state.low[s], state.high[s] = height, low, high


@compiled
def _fail(state: State, low: int, high: int) -> bool:
    state.control[_LOW], state.control[_HIGH] = low, high
    return False


@compiled
def _lift(problem: Problem, state: State, begin: int, end: int) -> bool:
    """Raise the buffers left over sections that have become higher; false if one is too high."""
    for t in range(begin, end):
        height = state.height[t]
        for i in range(problem.at[t], problem.at[t + 1]):
            e = problem.buffers[i]
            if state.offset[e] >= 0 or state.top[e] >= height:
                continue
            count = state.control[_TOPS]
            row = state.old_tops[count]
            row[0], row[1], row[2] = e, state.top[e], state.witness[e]
            state.control[_TOPS] = count + 1
            before = state.top[e]
            state.top[e], state.witness[e] = height, t
            if height + problem.size[e] > problem.limit[e]:
                return _fail(state, state.low[t], state.high[t])
            for s in range(problem.first[e], problem.last[e]):
                if state.height[s] == before:
                    state.dirty[s] = 1
    return True


@compiled
def _settle(problem: Problem, state: State, capacity: int) -> bool:
    """Compute dirty sections again; false if one of them exceeds the capacity."""
    for s in range(len(state.height)):
        if not state.dirty[s]:
            continue
        state.dirty[s] = 0
        if state.left[s] == 0:
            continue
        least, low, high = np.int64(1) << 62, s, s + 1
        for i in range(problem.at[s], problem.at[s + 1]):
            e = problem.buffers[i]
            if state.offset[e] < 0:
                w = state.witness[e]
                least = min(least, state.top[e])
                low, high = min(low, state.low[w]), max(high, state.high[w])
        if least > state.height[s]:
            _set_height(state, s, least, low, high)
        if state.height[s] + state.left[s] > capacity:
            return _fail(state, state.low[s], state.high[s])
    return True


@compiled
def _changed(problem: Problem, state: State, capacity: int, begin: int, end: int) -> bool:
    """Draw conclusions from sections that have become higher."""
    fine = _lift(problem, state, begin, end) and _settle(problem, state, capacity)
    if not fine:
        state.dirty[:] = 0
    return fine


@compiled
def _put(problem: Problem, state: State, capacity: int, b: int, offset: int) -> bool:
    """Place a buffer; false if that cannot be completed."""
    state.offset[b] = offset
    begin, end = problem.first[b], problem.last[b]
    for t in range(begin, end):
        state.left[t] -= problem.size[b]
        if t + 1 < end:
            state.crossing[t] -= 1
        _set_height(state, t, offset + problem.size[b], t, t + 1)
        state.dirty[t] = 1
    return _changed(problem, state, capacity, begin, end)


@compiled
def _leave(problem: Problem, state: State, capacity: int, s: int, height: int) -> bool:
    """Leave a section empty below a height; false if that cannot be completed."""
    _set_height(state, s, height, s, s + 1)
    state.dirty[s] = 1
    return _changed(problem, state, capacity, s, s + 1)


@compiled
def _undo(problem: Problem, state: State, level: int) -> None:
    """Take back the decision of a level, if there is one."""
    mark, control = state.mark[level], state.control
    if mark[_NEXT] > mark[_BEGIN]:
        b = state.cases[mark[_NEXT] - 1]
        if b != GAP:
            state.offset[b] = -1
            for t in range(problem.first[b], problem.last[b]):
                state.left[t] += problem.size[b]
                if t + 1 < problem.last[b]:
                    state.crossing[t] += 1
    while control[_HEIGHTS] > mark[_MARK_HEIGHTS]:
        control[_HEIGHTS] -= 1
        row = state.old_heights[control[_HEIGHTS]]
        s = row[0]
        state.height[s], state.low[s], state.high[s] = row[1], row[2], row[3]
    while control[_TOPS] > mark[_MARK_TOPS]:
        control[_TOPS] -= 1
        row = state.old_tops[control[_TOPS]]
        state.top[row[0]], state.witness[row[0]] = row[1], row[2]


@compiled
def _valley_end(state: State, s: int) -> int:
    """The section after the run of one height that begins here; negative if it is no valley."""
    e = s + 1
    while e < len(state.height) and state.crossing[e - 1] and state.height[e] == state.height[s]:
        e += 1
    is_low = e == len(state.height) or not state.crossing[e - 1] or (
        state.height[e] > state.height[s]
    )
    if s and state.crossing[s - 1] and state.height[s - 1] <= state.height[s]:
        is_low = False
    return e if is_low else -e


@compiled
def _supports(problem: Problem, state: State, begin: int, end: int, scratch: Integers) -> None:
    """Per section of a valley, the least height of what touches the valley and is not there.

    If what is in the section does not lie on the skyline, it lies on something of that kind.
    """
    n = end - begin
    scratch[: 2 * n + 2] = np.int64(1) << 61
    for s in range(begin, end):
        for i in range(problem.at[s], problem.at[s + 1]):
            e = problem.buffers[i]
            if state.offset[e] >= 0 or (problem.first[e] < s and s > begin):
                continue
            base = state.height[s]
            if problem.first[e] < begin:
                base = max(base, state.height[begin - 1])
            if problem.last[e] > end:
                base = max(base, state.height[end])
            after = problem.last[e] - begin
            if after < n:
                scratch[after] = min(scratch[after], base + problem.size[e])
            before = n + 1 + problem.first[e] - begin
            if before > n + 1:
                scratch[before] = min(scratch[before], base + problem.size[e])
    for k in range(1, n):
        scratch[k] = min(scratch[k], scratch[k - 1])
        back = 2 * n - k
        scratch[back] = min(scratch[back], scratch[back + 1])
    for k in range(n - 1):
        scratch[k] = min(scratch[k], scratch[n + 2 + k])


@compiled
def _choose(
    problem: Problem, state: State, capacity: int, scratch: Integers, mark: Integers
) -> bool:
    """Find the section with the fewest cases; false if all buffers are placed."""
    fewest, tightest = np.int64(1) << 62, np.int64(1) << 62
    begin = 0
    while begin < len(state.height):
        end = _valley_end(state, begin)
        if end < 0 or state.left[begin] == 0:
            begin = abs(end)
            continue
        height = state.height[begin]
        _supports(problem, state, begin, end, scratch)
        for s in range(begin, end):
            count, least = 0, np.int64(1) << 61
            for i in range(problem.at[s], problem.at[s + 1]):
                e = problem.buffers[i]
                if state.offset[e] < 0:
                    if state.top[e] == height:
                        count += 1
                        least = min(least, scratch[s - begin])
                    else:
                        least = min(least, state.top[e])
            slack = capacity - state.left[s] - height
            is_open = least - height <= slack
            count += is_open
            if count < fewest or (count == fewest and slack < tightest):
                fewest, tightest = count, slack
                mark[_SECTION], mark[_WHY_LOW], mark[_WHY_HIGH] = s, begin, end
                mark[_VALUE] = least if is_open else -1
        begin = end
    return fewest < np.int64(1) << 62


@compiled
def _explain(problem: Problem, state: State, mark: Integers) -> None:
    """Widen the run of a level's valley to all that its cases depend on."""
    begin, end, s = mark[_WHY_LOW], mark[_WHY_HIGH], mark[_SECTION]
    low, high = begin, end
    if begin and state.crossing[begin - 1]:
        low = begin - 1
    if end < len(state.height) and state.crossing[end - 1]:
        high = end + 1
    for t in range(low, high):
        mark[_WHY_LOW] = min(mark[_WHY_LOW], state.low[t])
        mark[_WHY_HIGH] = max(mark[_WHY_HIGH], state.high[t])
    mark[_WHY_LOW], mark[_WHY_HIGH] = min(mark[_WHY_LOW], low), max(mark[_WHY_HIGH], high)
    for i in range(problem.at[s], problem.at[s + 1]):
        e = problem.buffers[i]
        if state.offset[e] < 0 and state.top[e] > state.height[s]:
            w = state.witness[e]
            mark[_WHY_LOW] = min(mark[_WHY_LOW], state.low[w])
            mark[_WHY_HIGH] = max(mark[_WHY_HIGH], state.high[w])


@compiled
def _open(problem: Problem, state: State, priority: Integers, mark: Integers, at: int) -> None:
    """List the cases of a level: buffers by falling priority, of equal ones the first."""
    s = mark[_SECTION]
    height, count = state.height[s], at
    for i in range(problem.at[s], problem.at[s + 1]):
        e = problem.buffers[i]
        if state.offset[e] >= 0 or state.top[e] != height:
            continue
        is_new = True
        k = count
        for j in range(at, count):
            c = state.cases[j]
            if (
                problem.first[c] == problem.first[e]
                and problem.last[c] == problem.last[e]
                and problem.size[c] == problem.size[e]
                and problem.limit[c] == problem.limit[e]
            ):
                is_new = False
        if not is_new:
            continue
        while k > at and priority[state.cases[k - 1]] < priority[e]:
            state.cases[k] = state.cases[k - 1]
            k -= 1
        state.cases[k] = e
        count += 1
    if mark[_VALUE] >= 0:
        state.cases[count] = GAP
        count += 1
    mark[_BEGIN], mark[_NEXT], mark[_END] = at, at, count


@compiled
def _retreat(problem: Problem, state: State) -> bool:
    """Take back what has failed, and all that it does not depend on; false if nothing is left."""
    control = state.control
    while control[_LEVEL] >= 0:
        level = control[_LEVEL]
        mark = state.mark[level]
        b = state.cases[mark[_NEXT] - 1]
        begin, end = mark[_SECTION], mark[_SECTION] + 1
        if b != GAP:
            begin, end = problem.first[b], problem.last[b]
        _undo(problem, state, level)
        low, high = control[_LOW], control[_HIGH]
        if low < end and begin < high:
            mark[_WHY_LOW], mark[_WHY_HIGH] = min(low, mark[_WHY_LOW]), max(high, mark[_WHY_HIGH])
            if mark[_NEXT] < mark[_END]:
                return True
            control[_LOW], control[_HIGH] = mark[_WHY_LOW], mark[_WHY_HIGH]
        control[_LEVEL] = level - 1
    return False


@compiled
def search(
    problem: Problem, state: State, priority: Integers, capacity: int, nodes: int, scratch: Integers
) -> int:
    """Go on searching for a number of decisions, and tell how that ended."""
    control = state.control
    for _ in range(nodes):
        control[_NODES] += 1
        if not control[_RETREATED]:
            level = control[_LEVEL] + 1
            mark = state.mark[level]
            if not _choose(problem, state, capacity, scratch, mark):
                return FOUND
            _explain(problem, state, mark)
            _open(problem, state, priority, mark, state.mark[level - 1, _END] if level else 0)
            mark[_MARK_HEIGHTS], mark[_MARK_TOPS] = control[_HEIGHTS], control[_TOPS]
            control[_LEVEL] = level
            if mark[_BEGIN] == mark[_END]:
                control[_LOW], control[_HIGH] = mark[_WHY_LOW], mark[_WHY_HIGH]
                control[_LEVEL] = level - 1
                if not _retreat(problem, state):
                    return EXHAUSTED
        mark = state.mark[control[_LEVEL]]
        b, s = state.cases[mark[_NEXT]], mark[_SECTION]
        mark[_NEXT] += 1
        if b == GAP:
            fine = _leave(problem, state, capacity, s, mark[_VALUE])
        else:
            fine = _put(problem, state, capacity, b, state.height[s])
        control[_RETREATED] = not fine
        if not fine and not _retreat(problem, state):
            return EXHAUSTED
    return PAUSED
