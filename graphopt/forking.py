"""Locks that no other thread holds in a forked child, where there are no other threads.

What such a thread was at is not finished there, and done anew by whoever needs it: what a lock
protects is noted once it is made.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Final

_LOCKS: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def lock() -> threading.RLock:
    """A lock of one thread at a time.

    Not Lock: a signal's handler may call a net in the midst of another call.
    """
    made = threading.RLock()
    _LOCKS.add(made)
    return made


def _forget_threads() -> None:
    for each in list(_LOCKS):
        if not each._is_owned():  # by the thread that forked, which goes on
            each._at_fork_reinit()


os.register_at_fork(after_in_child=_forget_threads)
