"""Executors of one memory, as buckets have them: one of them runs at a time."""

from __future__ import annotations

import weakref
from typing import Any, Protocol


class Member(Protocol):
    """An executor that keeps what its backward will read."""

    def let_go(self) -> None:
        """Keep it no longer: computed again if backward asks for it after all."""


class Group:
    """Executors of which the one that ran last keeps what it computed.

    MXNet binds executors to the memory of another one (``shared_exec``), so that what one has
    computed is lost when another runs.

    Attributes:
        pool: an executor of MXNet's, whose memory others of the group are bound in.
    """

    def __init__(self) -> None:
        """None has run."""
        self.pool: Any = None
        self._last: weakref.ref[Member] | None = None

    def enter(self, member: Member) -> None:
        """Before an executor runs: the one before lets go of what it keeps."""
        last = None if self._last is None else self._last()
        if last is member:
            return
        if last is not None:
            last.let_go()
        self._last = weakref.ref(member)
