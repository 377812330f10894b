"""Which Blocks a Block consists of, and whether they are as they were."""

from __future__ import annotations

from collections.abc import ValuesView
from itertools import chain
from operator import is_, itemgetter
from typing import Any, Final

from graphopt.frontend.blocks import descendants
from graphopt.frontend.gluon import why_hooked

_FLAGS: Final = itemgetter("_flags")


class Structure:
    """The descendants of a Block; asked at every call, so what is compared is looked up once.

    Gluon lets children be added and replaced, and hooks be registered (``summary`` does), at any
    time, and no cached graph of an ancestor knows of it.
    """

    def __init__(self, block: Any) -> None:
        """Note them as they are."""
        blocks = descendants(block)
        self._below = blocks[1:]
        self._children: list[ValuesView[Any]] = [part._children.values() for part in blocks]
        # Gluon has them anew whenever it is told to hybridize or not to.
        self._flagged = [vars(part) for part in blocks if "_flags" in vars(part)]
        self._flags = [own["_flags"] for own in self._flagged]
        self._known = self._found()
        self._hooks = [
            hooks
            for part in self._below
            for hooks in (part._forward_hooks, part._forward_pre_hooks)
        ]

    def is_same(self) -> bool:
        """Whether no Block was added, replaced, taken out, or hybridized or not."""
        are_told_no_more = all(map(is_, map(_FLAGS, self._flagged), self._flags))
        return are_told_no_more and self._found() == self._known

    def hybridized(self) -> str:
        """Which Blocks are, and with what flags."""
        flags = [own["_active"] and own["_flags"] for own in self._flagged]
        return str(flags) if any(flags) else ""

    def hooked(self) -> str:
        """Why its code runs call by call: a descendant has hooks; empty if none has."""
        return why_hooked(self._below) if any(self._hooks) else ""

    def _found(self) -> list[Any]:
        return list(chain.from_iterable(self._children))
