"""Pack buffers into an arena: greedy orders first, then search, until the time is over."""

from __future__ import annotations

import time

from graphopt.errors import InputError
from graphopt.memory.best import Best
from graphopt.memory.buffers import Buffers
from graphopt.memory.model import Model
from graphopt.memory.packing import Packing, Status


def pack(
    buffers: Buffers,
    *,
    capacity: int | None = None,
    alignment: int = 1,
    time_limit: float = 10.0,
    seed: int = 0,
) -> Packing:
    """Place buffers so that none overlap while they are live, in as small an arena as is found.

    Greedy placement in several orders comes first; then a search looks for a plan as small as the
    lower bound, and for smaller ones than the best so far. Whatever the limit, one greedy plan is
    made: that takes milliseconds for a thousand buffers and seconds for 60,000.

    Args:
        buffers: what to place.
        capacity: bytes of the arena; the first plan that fits ends the search. Default: look for
            the smallest arena.
        alignment: what offsets must be multiples of, bytes.
        time_limit: seconds after which the best plan so far is returned.
        seed: of the search's random choices.

    Raises:
        InputError: buffers are none, capacity or alignment is below 1, or time_limit is negative or
            no number.
    """
    _require_buffers(buffers)
    _check("capacity", capacity)
    _check("alignment", alignment)
    if not time_limit >= 0:
        raise InputError(f"time_limit must be at least 0 seconds, not {time_limit}")
    begin = time.perf_counter()
    model = Model.of(buffers, alignment)
    best = Best(model, capacity, begin + time_limit)
    if len(model):
        _improve(best, seed)
    return Packing(
        buffers=buffers,
        offsets=best.offsets * model.unit,
        arena=best.arena,
        lower_bound=best.lower_bound,
        seconds=time.perf_counter() - begin,
        method=best.method,
        status=_status(best, capacity),
    )


def _require_buffers(given: object) -> None:
    if not isinstance(given, Buffers):
        kind = type(given).__name__
        raise InputError(
            f"pack() takes Buffers, not a {kind}: make them of columns,"
            " Buffers(ids, lower, upper, size), or of a file, read_buffers(path)"
        )


def _check(name: str, value: int | None) -> None:
    if value is not None and not 1 <= value <= 1 << 62:
        raise InputError(f"{name} must be 1 to 2**62 bytes, not {value}")


def _improve(best: Best, seed: int) -> None:
    # Numba takes a while to import, and `graphopt pack --help` does without.
    from graphopt.memory import greedy, search

    greedy.run(best)
    if not best.is_enough:
        search.run(best, seed)


def _status(best: Best, capacity: int | None) -> Status:
    if capacity is None:
        return "optimal" if best.arena == best.lower_bound else "feasible"
    if best.arena <= capacity:
        return "fits"
    return "infeasible" if best.lower_bound > capacity else "unknown"
