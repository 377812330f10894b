"""The user's own Block behind a view."""

from __future__ import annotations

from typing import Any


def original(block: Any) -> Any:
    """The user's own object behind a view; of a decorated class one that MXNet runs."""
    try:  # past a `__getattr__` of the user's
        own: Any = object.__getattribute__(block, "_graphopt_own")
    except AttributeError:  # the user's code made a copy of the view by its class
        own = beside(block)
        object.__setattr__(block, "_graphopt_own", own)  # which has what is in slots
    if own.__dict__ is not block.__dict__:
        own.__dict__ = block.__dict__
    return own


def beside(block: Any) -> Any:
    """Another object of the user's class with a view's ``__dict__``."""
    own: Any = object.__new__(block._graphopt_base)
    own.__dict__ = block.__dict__
    return own
