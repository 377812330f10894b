"""Engines timed against each other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from graphopt.backend.engines import Engine
from graphopt.compat import import_mxnet

#: Calls shorter than this are timed several at once.
_SHORT_S = 1e-3
_BURST = 10
#: Engines that take this many times the best one's time are not timed again: at once, and later.
_HOPELESS, _BEHIND = 2.5, 1.25
#: At once, where a call takes so many seconds: it is not much noise then, and a long wait.
_LONG_S, _LONG_HOPELESS = 0.25, 1.75
#: Rounds that a race takes at most, and at least while more than one engine is left.
_MOST_ROUNDS, _FEWEST_ROUNDS, _FEWEST_LONG = 20, 4, 2
#: A call that takes so many seconds is waited for seldom: one round, and not of all.
_VERY_LONG_S, _TIMED_IF_VERY_LONG = 0.5, 2
#: Seconds for each engine after which the race is over if those rounds are done.
_PATIENCE_S = 0.4


def race(
    engines: Mapping[str, Engine],
    feeds: Mapping[str, Mapping[str, Any]],
    first_s: Mapping[str, float],
) -> dict[str, float]:
    """Milliseconds of a call of each engine, once warm: the best of some, in turns.

    In turns, as a machine that others use too may be twice as fast a moment later. Those that are
    far behind after the first round drop out, after the second those a little behind. Short calls
    are made several at once before the results are waited for, as a net that calls a small child
    for every node does: an engine that returns before it is done gains by that. Of very long calls
    those are timed whose first ones were the fastest, once; the others have what these took.

    Args:
        engines: by name.
        feeds: for each engine, an array per name of its inputs.
        first_s: seconds that the first call of each took.
    """
    mx = import_mxnet()
    arrays = {name: [feeds[name][n] for n in engine.inputs] for name, engine in engines.items()}
    best = dict.fromkeys(engines, float("inf"))
    calls = dict.fromkeys(engines, 1)
    running, spent, rounds = sorted(engines, key=first_s.__getitem__), 0.0, 0
    with mx.autograd.pause(train_mode=False):
        while rounds < _fewest(min(best.values())) or (
            rounds < _MOST_ROUNDS and spent < _PATIENCE_S * len(engines)
        ):
            for place, name in enumerate(running):
                if place >= _TIMED_IF_VERY_LONG and min(best.values()) > _VERY_LONG_S:
                    break
                took = _block(engines[name], arrays[name], calls[name])
                best[name] = min(best[name], took)
                spent += took * calls[name]
                calls[name] = _BURST if best[name] < _SHORT_S else 1
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


def _most(best: float, rounds: int) -> float:
    """Seconds beyond which an engine drops out."""
    if rounds > 1:
        return best * _BEHIND
    return best * (_HOPELESS if best < _LONG_S else _LONG_HOPELESS)


def _block(engine: Engine, arrays: Sequence[Any], calls: int) -> float:
    """Seconds of a call, of so many."""
    start = time.perf_counter()
    for outputs in [engine(arrays) for _ in range(calls)]:
        for output in outputs:
            output.wait_to_read()
    return (time.perf_counter() - start) / calls
