"""Answers about classes, kept as long as the classes are there."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

Answer = TypeVar("Answer")


def kept_by_class(ask: Callable[[type], Answer]) -> Callable[[type], Answer]:
    """The same function, which is asked once of each class.

    Each view has a class of its own, and users make some, too: ``functools.cache`` would keep these
    for good, and all that their methods refer to.
    """
    known: WeakKeyDictionary[type, Answer] = WeakKeyDictionary()

    @wraps(ask)
    def answer(cls: type) -> Answer:
        if cls not in known:
            known[cls] = ask(cls)
        return known[cls]

    return answer
