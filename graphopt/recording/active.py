"""Which tape each thread's calls go to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from graphopt.recording.tape import Tape


class Active(threading.local):
    """The tape of each thread; ``None`` where nothing is recorded."""

    tape: Tape | None = None


ACTIVE: Final = Active()


@contextmanager
def unrecorded() -> Iterator[None]:
    """Inside the block this thread's calls of MXNet are made at once."""
    tape, ACTIVE.tape = ACTIVE.tape, None
    try:
        yield
    finally:
        ACTIVE.tape = tape
