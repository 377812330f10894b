"""Who may replace functions of MXNet: threads that record samples, or threads that record calls.

An interrupt (Ctrl-C) may raise at the start and after the end of any call, also within what cleans
up. So a turn ends by a bare store, which nothing comes between, and everything else only follows
from which turns are not over: what an interrupt kept from being done, the next turn does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Literal

Kind = Literal["samples", "calls"]
_OTHER: Final[dict[Kind, Kind]] = {"samples": "calls", "calls": "samples"}
#: Seconds between looks at whether the other kind is gone. Nobody is woken: the lock is held by a
#: ``with`` alone, which no interrupt leaves locked, as it may a condition variable.
_WAIT: Final = 1e-3


class Turn:
    """From one entry to its end.

    Attributes:
        is_over: set by whoever began it, as the first thing in a ``finally``.
    """

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        """Not over."""
        self.is_over = False


class Turns:
    """Any number of turns of one kind at a time: each kind puts MXNet's own functions back."""

    def __init__(self) -> None:
        """Nobody is in."""
        self._turns: dict[Kind, set[Turn]] = {"samples": set(), "calls": set()}
        self._waiting: set[Turn] = set()
        self._lock = threading.Lock()

    def enter(self, kind: Kind, turn: Turn, install: Callable[[], None]) -> None:
        """Wait until nobody of the other kind is in; then ``install`` replaces functions."""
        with self._lock:
            self._waiting.add(turn)
        while not self._entered(kind, turn, install):
            time.sleep(_WAIT)

    def try_enter(self, kind: Kind, turn: Turn, install: Callable[[], None]) -> bool:
        """Enter if nobody of the other kind is in, and nobody waits; tell whether."""
        with self._lock:
            self._waiting = _going_on(self._waiting)
            has_to_stay_out = bool(self._waiting)
        return not has_to_stay_out and self._entered(kind, turn, install)

    def leave(self, remove: Callable[[], None]) -> None:
        """After the end of a turn, whether it was in or not: ``remove`` puts functions back."""
        with self._lock:
            for kind, turns in self._turns.items():
                self._turns[kind] = _going_on(turns)
            if not any(self._turns.values()):
                remove()

    def _entered(self, kind: Kind, turn: Turn, install: Callable[[], None]) -> bool:
        with self._lock:
            other = self._turns[_OTHER[kind]] = _going_on(self._turns[_OTHER[kind]])
            if other:
                return False
            self._turns[kind].add(turn)
            self._waiting.discard(turn)
            install()
            return True


def _going_on(turns: set[Turn]) -> set[Turn]:
    return {turn for turn in turns if not turn.is_over}


TURNS: Final = Turns()
