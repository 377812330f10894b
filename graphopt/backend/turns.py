"""Who may replace functions of MXNet: threads that record samples, or threads that record calls."""

from __future__ import annotations

import threading
from typing import Final, Literal

Kind = Literal["samples", "calls"]
_OTHER: Final[dict[Kind, Kind]] = {"samples": "calls", "calls": "samples"}


class Turns:
    """Any number of threads of one kind at a time: each kind puts MXNet's own functions back."""

    def __init__(self) -> None:
        """Nobody is in."""
        self._users: dict[Kind, int] = {"samples": 0, "calls": 0}
        self._left = threading.Condition()

    def enter(self, kind: Kind) -> None:
        """Wait until nobody of the other kind is in."""
        with self._left:
            self._left.wait_for(lambda: not self._users[_OTHER[kind]])
            self._users[kind] += 1

    def try_enter(self, kind: Kind) -> bool:
        """Enter if nobody of the other kind is in; tell whether."""
        with self._left:
            free = not self._users[_OTHER[kind]]
            self._users[kind] += free
            return free

    def leave(self, kind: Kind) -> None:
        """Take back one :meth:`enter`."""
        with self._left:
            self._users[kind] -= 1
            self._left.notify_all()


TURNS: Final = Turns()
