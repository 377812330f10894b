"""Engines timed against each other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.backend.engines import Engine
from graphopt.compat import import_mxnet

#: Calls shorter than this are timed in blocks of several.
_SHORT_S = 2e-3
#: Of such a block: calls that put weights back into the caches that the others' have thrown them
#: out of, calls waited for one by one, and calls made before the results are waited for.
_UNTIMED, _WAITED, _BURST = 4, 5, 10
#: Engines that take this many times the best one's time are not timed again: at once, and later.
_HOPELESS, _BEHIND = 2.5, 1.25
#: At once, where a call takes so many seconds: it is not much noise then, and a long wait.
_LONG_S, _LONG_HOPELESS = 0.25, 1.75
#: Rounds that a race takes at most, and at least while more than one engine is left.
_MOST_ROUNDS, _FEWEST_ROUNDS, _FEWEST_LONG = 20, 4, 2
#: Of short calls, whose rounds have many.
_MOST_SHORT = 10
#: A call that takes so many seconds is waited for seldom: one round, and not of all.
_VERY_LONG_S, _TIMED_IF_VERY_LONG = 0.5, 2
#: Seconds for each engine after which the race is over if those rounds are done, by default.
_PATIENCE_S = 0.4


def race(
    engines: Mapping[str, Engine],
    feeds: Mapping[str, Mapping[str, Any]],
    first_s: Mapping[str, float],
    *,
    patience_s: float = _PATIENCE_S,
) -> dict[str, float]:
    """Milliseconds of a call of each engine, once warm: the best of some, in turns.

    In turns, as a machine that others use too may be twice as fast a moment later. Those that are
    far behind after the first round drop out, after the second those a little behind. Short calls
    are timed in blocks, half of them waited for one by one, as a server does, and half of them made
    before the results are waited for, as a net that calls a small child for every node does: an
    engine that returns before it is done gains by that. Weights of a net that is called in a loop
    stay in the caches, so those of an engine are called in before. Of very long calls
    those are timed whose first ones were the fastest, once; the others have what these took.

    Args:
        engines: by name.
        feeds: for each engine, an array per name of its inputs.
        first_s: seconds that the first call of each took.
        patience_s: for each engine, seconds after which the race is over once the rounds are done
            that it takes at least.
    """
    mx = import_mxnet()
    arrays = {name: [feeds[name][n] for n in engine.inputs] for name, engine in engines.items()}
    best = dict.fromkeys(engines, float("inf"))
    running, spent, rounds = sorted(engines, key=first_s.__getitem__), 0.0, 0
    with mx.autograd.pause(train_mode=False):
        while rounds < _fewest(min(best.values())) or (
            rounds < _rounds(min(best.values())) and spent < patience_s * len(engines)
        ):
            for place, name in enumerate(running):
                if place >= _TIMED_IF_VERY_LONG and min(best.values()) > _VERY_LONG_S:
                    break
                is_short = best[name] < _SHORT_S
                took = _block(engines[name], arrays[name], is_short=is_short)
                best[name] = min(best[name], took)
                spent += took * (_UNTIMED + _WAITED + _BURST if is_short else 1)
            rounds += 1
            most = _most(min(best.values()), rounds)
            running = [name for name in running if best[name] < most]
            if len(running) <= 1:
                break
    return {name: min(took, first_s[name]) * 1e3 for name, took in best.items()}


def _fewest(best: float) -> int:
    """Rounds that are made however long they take."""
    if best == float("inf") or best <= _LONG_S:
        return _FEWEST_ROUNDS
    return _FEWEST_LONG if best <= _VERY_LONG_S else 1


def _rounds(best: float) -> int:
    """Rounds that are made if they take little."""
    return _MOST_SHORT if best < _SHORT_S else _MOST_ROUNDS


def _most(best: float, rounds: int) -> float:
    """Seconds beyond which an engine drops out."""
    if best < _SHORT_S and rounds < _FEWEST_ROUNDS:
        # The first round has cold caches, and one block says little.
        return best * _HOPELESS if rounds > 1 else float("inf")
    if rounds > 1:
        return best * _BEHIND
    return best * (_HOPELESS if best < _LONG_S else _LONG_HOPELESS)


def _block(engine: Engine, arrays: Sequence[Any], *, is_short: bool) -> float:
    """Seconds of a call."""
    if not is_short:
        return _seconds(engine, arrays)
    for _ in range(_UNTIMED):
        _seconds(engine, arrays)
    waited = sum(_seconds(engine, arrays) for _ in range(_WAITED)) / _WAITED
    return (waited + _seconds(engine, arrays, _BURST)) / 2


def _seconds(engine: Engine, arrays: Sequence[Any], calls: int = 1) -> float:
    """Seconds of a call, of so many that are waited for together."""
    start = time.perf_counter()
    for outputs in [engine(arrays) for _ in range(calls)]:
        for output in outputs:
            output.wait_to_read()
    return (time.perf_counter() - start) / calls
