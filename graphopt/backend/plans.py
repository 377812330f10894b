"""Memory that MXNet plans for the steps of one net, for each size of its inputs anew."""

from __future__ import annotations

import weakref
from typing import Final, Protocol

from graphopt.forking import lock

#: Bytes that plans for other sizes may keep. Below that planning anew would be felt.
MOST_BYTES: Final = 256 << 20


class Planning(Protocol):
    """An engine that may plan anew.

    Attributes:
        last_call: a number that grows from call to call of the process.
    """

    last_call: int

    @property
    def planned_bytes(self) -> int:
        """What its plan keeps, 0 where it has none."""

    def renew(self) -> None:
        """Let go of the plan; the next call makes another."""


class Plans:
    """Engines of one net on one device, for various sizes.

    MXNet's own CachedOp has one plan, made anew whenever sizes change. To keep some saves that
    where they take turns; to keep all would take as much memory as all sizes together.
    """

    def __init__(self) -> None:
        """Nothing is planned."""
        self._engines: weakref.WeakSet[Planning] = weakref.WeakSet()
        self._lock = lock()

    def make_room(self, engine: Planning) -> None:
        """Before an engine plans: others let go of theirs, the one used longest ago first."""
        with self._lock:
            others = [other for other in self._engines if other is not engine]
            self._engines.add(engine)
        kept = 0
        for other in sorted(others, key=lambda other: -other.last_call):
            kept += other.planned_bytes
            if kept > MOST_BYTES:
                other.renew()
