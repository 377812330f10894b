"""Blocks that one thread at a time traces.

A Block that is called with Symbols enters its scope of names, which it has once for all threads,
and its hooks and attributes are watched and put back meanwhile. Views of one Block have these in
common, and so have a Block and one that it is part of.

Threads wait for those alone that trace the same Blocks. One lock for all would have a thread whose
Python calls another net, in its midst, wait for the thread that compiles that, and be waited for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from graphopt.frontend.blocks import descendants

#: Seconds to wait for another thread at most. One whose traced Python calls a view of a part of the
#: Block may itself wait for who is waiting here.
_PATIENCE: Final = 60
_turn = threading.Condition()
#: Which thread traces a Block, by the id of its scope, which what shares its attributes has, too.
_TRACING: Final[dict[int, int]] = {}


def _forget_threads() -> None:
    """In a forked child: nobody else traces anything."""
    global _turn
    _turn = threading.Condition()
    _TRACING.clear()


os.register_at_fork(after_in_child=_forget_threads)


@contextmanager
def traced_alone(block: Any) -> Iterator[None]:
    """Inside the block of code no other thread traces a Block, or one in it.

    A thread may come here again while it is at it.
    """
    me = threading.get_ident()
    scopes = {id(part._scope) for part in descendants(block)}
    mine: set[int] = set()
    try:
        with _turn:
            _turn.wait_for(
                lambda: all(_TRACING.get(scope, me) == me for scope in scopes), _PATIENCE
            )
            mine = scopes - _TRACING.keys()
            _TRACING.update(dict.fromkeys(mine, me))
        yield
    finally:
        with _turn:
            for scope in mine:
                _TRACING.pop(scope, None)
            _turn.notify_all()
