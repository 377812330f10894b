"""Turns of threads to hand graphs to MXNet's engine, for where there is no bridge.

The engine appends an operation to the queue of one array after the other. Of two threads that hand
over operations on the same two arrays each may come first in one of the queues: where one of the
two operations writes them, both wait for ever, and with them whoever asks for a result. Threads
that call one net share its parameters, and what operators take for scratch is that of the thread
that prepared them. To bind an executor or to free one "writes" all that it reads.

The bridge has the engine take one operation at a time (``kernels/bridge/pushing.h``). What runs
without it, on a machine that has no compiler, needs turns for each graph instead; they are taken
with it as well, as it may be loaded at any time.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any, Final

from graphopt.backend.documents import text_of
from graphopt.forking import lock

#: Taken to call what reads shared arrays and writes scratch. Not Lock: a signal handler, or what a
#: call asks of Python, may call a net again. No thread forks while another one is at it.
TURN: Final = threading.RLock()
os.register_at_fork(before=TURN.acquire, after_in_parent=TURN.release, after_in_child=TURN.release)


#: Operators that run graphs of their own or the user's Python, or whose results' shapes are known
#: once they have run.
_WAITED_FOR: Final = re.compile(
    r'"op": "(_foreach|_while_loop|_cond|_CachedOp\w*|Custom|_contrib_dgl_\w+'
    r'|\w*(boolean_mask\w*|nonzero|unique|_delete|_insert_\w+))"'
)


def turn_to_call(symbol: Any) -> threading.RLock:
    """:data:`TURN`; a lock of its own for a graph for whose results MXNet waits in its midst.

    These may wait for the user's Python, in which another thread waits for its turn.
    """
    return lock() if _WAITED_FOR.search(text_of(symbol)) else TURN


def done_in_turn(what: Callable[[], object]) -> bool:
    """Do something in this thread's turn unless that has to be waited for; if it was done.

    For what runs in whatever state a thread is in, as Python's collection of garbage does: others
    may wait for that thread.
    """
    if not TURN.acquire(blocking=False):
        return False
    try:
        what()
    finally:
        TURN.release()
    return True
