"""Which Blocks and Parameters a Block consists of, and whether they are as they were."""

from __future__ import annotations

from collections.abc import ValuesView
from itertools import chain
from operator import getitem, is_, itemgetter
from typing import Any, Final

from graphopt.frontend.blocks import descendants
from graphopt.frontend.gluon import why_hooked

_FLAGS: Final = itemgetter("_flags")
_CHILDREN: Final = itemgetter("_children")


class Structure:
    """The descendants of a Block; asked at every call, so what is compared is looked up once.

    Gluon lets children be added and replaced, parameters be put in the place of others (to tie
    weights), and hooks be registered (``summary`` does), at any time, and no cached graph of an
    ancestor knows of it. Where it refuses to, attributes that hold children are set past it.
    """

    def __init__(self, block: Any) -> None:
        """Note them as they are."""
        blocks = descendants(block)
        self._below = blocks[1:]
        self._owns = [vars(part) for part in blocks]
        self._children = [own["_children"] for own in self._owns]
        self._held: list[ValuesView[Any]] = [held.values() for held in self._children]
        self._held += [own["_reg_params"].values() for own in self._owns]
        named = [
            (own, name, child)
            for own in self._owns
            for name, child in own["_children"].items()
            if own.get(name) is child
        ]
        self._attributes: list[list[Any]] = [[*each] for each in zip(*named, strict=True)]
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
        """Whether nothing was added, replaced, taken out, or hybridized or not."""
        are_told_no_more = all(map(is_, map(_FLAGS, self._flagged), self._flags))
        return are_told_no_more and self.has_same_parts()

    def has_same_parts(self) -> bool:
        """Whether nothing was added, replaced or taken out."""
        are_there = all(map(is_, map(_CHILDREN, self._owns), self._children))
        return are_there and self._found() == self._known and self._are_attributes_same()

    def hybridized(self) -> str:
        """Which Blocks are, and with what flags."""
        flags = [own["_active"] and own["_flags"] for own in self._flagged]
        return str(flags) if any(flags) else ""

    def hooked(self) -> str:
        """Why its code runs call by call: a descendant has hooks; empty if none has."""
        return why_hooked(self._below) if any(self._hooks) else ""

    def _are_attributes_same(self) -> bool:
        if not self._attributes:
            return True
        owns, names, children = self._attributes
        try:
            return all(map(is_, map(getitem, owns, names), children))
        except KeyError:
            return False

    def _found(self) -> list[Any]:
        return list(chain.from_iterable(self._held))
