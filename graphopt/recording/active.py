"""Which tape each thread's calls go to."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from graphopt.recording.tape import Tape


class Active(threading.local):
    """Of each thread, the tape and the hybridized Block that is called; ``None`` without."""

    tape: Tape | None = None
    child: Any = None


ACTIVE: Final = Active()


def flush_recorded() -> None:
    """Run what this thread has recorded, before arrays are written in ways that no tape sees."""
    if ACTIVE.tape is not None:
        ACTIVE.tape.flush()


class Unrecorded:
    """Inside the block this thread's calls of MXNet are made at once.

    No generator: one that an interrupt kept from its block would put the tape back much later.
    """

    __slots__ = ("_tape",)

    def __enter__(self) -> None:
        """Set the tape aside."""
        self._tape, ACTIVE.tape = ACTIVE.tape, None

    def __exit__(self, *_: Any) -> None:
        """Go on with it."""
        ACTIVE.tape = self._tape
