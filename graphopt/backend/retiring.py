"""What MXNet planned, freed by the thread that used it last, in a turn of its own.

MXNet's engine frees a plan (a CachedOp with ``static_shape``, an executor) by operations that write
all arrays of the plan, also the parameters that it shares: :mod:`graphopt.backend.pushing` tells
what comes of that if another thread hands over operations on them. A plan is freed with whatever
refers to it last. That may be a tape, which an operation under way has kept alive, in a thread of
the engine; or cycles of Python's objects, in whichever thread collects them.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import cache
from threading import get_ident
from typing import Any, Final

from graphopt.backend.pushing import TURN, done_in_turn
from graphopt.kernels import bridge

_Retired = tuple[int, Callable[[], bool], Callable[[], object]]

_RETIRED: Final[deque[_Retired]] = deque()
#: Which threads are no more is looked up as seldom as this, and was then.
_A_WHILE_S: Final = 0.1
_looked_at = 0.0


def retire(user: int, is_free: Callable[[], bool], free: Callable[[], object]) -> None:
    """Call ``free`` now if that cannot hang anything, else when :func:`free_retired` is called.

    Nothing is freed once Python ends.

    Args:
        user: the thread that used it last.
        is_free: whether nobody else refers to it.
        free: what frees it.
    """
    if sys.is_finalizing():  # the process ends with it, and modules are taken apart
        return
    if not (_may_free(user) and is_free() and done_in_turn(free)):
        _RETIRED.append((user, is_free, free))


def free_retired() -> None:
    """Free what this thread, or one that is no more, used last, and nobody refers to by now."""
    global _looked_at
    if not _RETIRED:
        return
    here, now = get_ident(), time.monotonic()
    living: Collection[int] | None = None
    if now >= _looked_at + _A_WHILE_S:  # which takes longer the more threads there are
        # Not the frames, which would keep what is in them, this one among them.
        living, _looked_at = frozenset(sys._current_frames()), now
    for _ in range(len(_RETIRED)):
        try:
            retired = _RETIRED.popleft()
        except IndexError:  # another thread frees, too
            return
        user = retired[0]
        if user == here or (living is not None and user not in living):
            retire(*retired)
        else:
            _RETIRED.append(retired)


def _may_free(user: int) -> bool:
    """Whether this is that thread, or it is no more."""
    return user == get_ident() or user not in sys._current_frames()


def cached_op(mxnet: Any, symbol: Any, flags: Any) -> Any:
    """A CachedOp of MXNet that is freed as described above; ``user`` is the thread it is of."""
    free_retired()
    if mxnet.autograd.is_recording() and not bridge.is_loaded():
        bridge.load_if_built(mxnet)
    # Besides whoever has the handle these are tapes. Only the bridge can tell.
    users = _users_of_cached_op(bridge.load(mxnet)) if bridge.is_loaded() else _one
    kind: Any = _retiring(mxnet.nd.CachedOp, users)
    return kind(symbol, flags)


def bound_executor(symbol: Any, *args: Any, **kwargs: Any) -> Any:
    """An executor of MXNet that is freed as described above; ``user`` is the thread it is of.

    Args:
        symbol: what it runs.
        args: of ``symbol.bind``.
        kwargs: of ``symbol.bind``.
    """
    free_retired()
    with TURN:
        executor = symbol.bind(*args, **kwargs)
    # No tape refers to what MXNet's own Python has bound.
    executor.__class__ = _retiring(executor.__class__, _one)
    executor.user = get_ident()
    return executor


@cache
def _retiring(kind: Any, users: Callable[[Any], int]) -> Any:
    """A class of objects that MXNet frees by their ``handle`` when they are deleted.

    Args:
        kind: MXNet's class.
        users: how many refer to what a handle refers to.
    """

    class Retiring(kind):
        def __init__(self, *args: Any) -> None:
            self.user = get_ident()
            super().__init__(*args)

        def __del__(self) -> None:
            retire(self.user, lambda: users(self.handle) <= 1, super().__del__)

    return Retiring


@cache
def _users_of_cached_op(library: ctypes.CDLL) -> Callable[[Any], int]:
    users = library.graphopt_cached_op_users
    users.restype, users.argtypes = ctypes.c_int64, [ctypes.c_void_p]
    return lambda handle: int(users(handle))  # functions of ctypes have no hash


def _one(handle: Any) -> int:
    return 1
