"""Turns of threads to hand graphs to MXNet's engine.

The engine appends an operation to the queue of one array after the other. Of two threads that hand
over operations on the same two arrays each may come first in one of the queues: where one of the
two operations writes them, both wait for ever, and with them whoever asks for a result. Threads
that call one net share its parameters, and what operators take for scratch is that of the thread
that prepared them. To bind an executor or to free one "writes" all that it reads.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

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
    return threading.RLock() if _WAITED_FOR.search(symbol.tojson()) else TURN


@contextmanager
def alone() -> Iterator[None]:
    """Inside the block nobody else of graphopt hands MXNet's engine anything."""
    with TURN, _begun(waits=True):
        yield


def done_alone(what: Callable[[], object]) -> bool:
    """Do something as in :func:`alone` unless another thread has to be waited for; if it was done.

    For what runs in whatever state a thread is in, as Python's collection of garbage does: others
    may wait for that thread.
    """
    if not TURN.acquire(blocking=False):
        return False
    try:
        with _begun(waits=False) as is_alone:
            if is_alone:
                what()
            return is_alone
    finally:
        TURN.release()


@contextmanager
def _begun(*, waits: bool) -> Iterator[bool]:
    """Inside the block the bridge, where it is loaded, pushes nothing in other threads; if so."""
    if not bridge.is_loaded():
        yield True
        return
    library = _functions()
    is_alone = ctypes.c_int()  # written by the bridge, as an interrupt loses what it returns
    try:
        library.graphopt_begin_alone(waits, ctypes.byref(is_alone))
        yield bool(is_alone)
    finally:
        library.graphopt_end_alone(ctypes.byref(is_alone))


@cache
def _functions() -> ctypes.CDLL:
    library = bridge.load(import_mxnet())
    library.graphopt_begin_alone.restype = library.graphopt_end_alone.restype = None
    return library
