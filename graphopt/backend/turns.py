"""Who may replace functions of MXNet: threads that record samples, or threads that record calls.

An interrupt (Ctrl-C) may raise at the start and after the end of any call, also within what cleans
up. So a turn ends by a bare store, which nothing comes between, and everything else only follows
from which turns are not over: what an interrupt kept from being done, the next turn does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: Seconds between looks at whether the other kind is gone. Nobody is woken: the lock is held by a
#: ``with`` alone, which no interrupt leaves locked, as it may a condition variable.
_WAIT: Final = 1e-3


@dataclass(frozen=True, eq=False)
class Kind:
    """What turns of a kind replace, all of it together and as often as is asked.

    Attributes:
        install: replace functions.
        remove: put MXNet's own back.
    """

    install: Callable[[], None]
    remove: Callable[[], None]


class Turn:
    """From one entry to its end.

    Attributes:
        is_over: set by whoever began it, as the first thing in a ``finally``.
        thread: of whoever began it.
    """

    __slots__ = ("is_over", "thread")

    def __init__(self) -> None:
        """Not over."""
        self.is_over = False
        self.thread = threading.get_ident()


class Turns:
    """Any number of turns of one kind at a time."""

    def __init__(self) -> None:
        """Nobody is in."""
        self._turns: set[Turn] = set()
        self._waiting: set[Turn] = set()
        self._kind: Kind | None = None  # whose functions are installed, some at least
        self._lock = threading.Lock()

    def enter(self, kind: Kind, turn: Turn) -> None:
        """Wait until nobody of another kind is in; then replace functions."""
        with self._lock:
            self._waiting.add(turn)
        while not self._entered(kind, turn):
            time.sleep(_WAIT)

    def try_enter(self, kind: Kind, turn: Turn) -> bool:
        """Enter if nobody of another kind is in, and nobody waits; tell whether."""
        with self._lock:
            self._waiting = _going_on(self._waiting)
            has_to_stay_out = bool(self._waiting)
        return not has_to_stay_out and self._entered(kind, turn)

    def leave(self) -> None:
        """After the end of a turn, whether it was in or not: the last one puts functions back."""
        with self._lock:
            self._turns = _going_on(self._turns)
            if not self._turns:
                self._put_back()

    def forget_threads(self) -> None:
        """In a forked child: no thread but the one that forked is in, or holds the lock."""
        self._lock = threading.Lock()
        here = threading.get_ident()
        for turn in self._turns | self._waiting:
            turn.is_over |= turn.thread != here
        self.leave()

    def _entered(self, kind: Kind, turn: Turn) -> bool:
        with self._lock:
            self._turns = _going_on(self._turns)
            if self._kind is not kind:
                if self._turns:
                    return False
                self._put_back()  # where an interrupt kept the last one from it
            self._kind = kind
            self._turns.add(turn)
            self._waiting.discard(turn)
            kind.install()
            return True

    def _put_back(self) -> None:
        if self._kind is not None:
            self._kind.remove()
        self._kind = None


def _going_on(turns: set[Turn]) -> set[Turn]:
    return {turn for turn in turns if not turn.is_over}


TURNS: Final = Turns()
os.register_at_fork(after_in_child=TURNS.forget_threads)
