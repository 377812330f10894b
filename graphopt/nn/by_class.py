"""Answers about classes, kept as long as the classes are there."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, TypeVar, cast
from weakref import WeakKeyDictionary

Answer = TypeVar("Answer")
_NOTHING: Final = object()


def kept_by_class(ask: Callable[[type], Answer]) -> Callable[[type], Answer]:
    """The same function, which is asked once of each class.

    Each view has a class of its own, and users make some, too: ``functools.cache`` would keep these
    for good, and all that their methods refer to.
    """
    known: WeakKeyDictionary[type, Answer] = WeakKeyDictionary()

    @wraps(ask)
    def answer(cls: type) -> Answer:
        # Not `in`: what is known may be of an equal class, of a view that is dropped meanwhile.
        found = known.get(cls, _NOTHING)
        if found is _NOTHING:
            found = known[cls] = ask(cls)
        return cast(Answer, found)

    return answer
