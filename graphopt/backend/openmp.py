"""OpenMP's workers of the thread that calls MXNet."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache

_SOFT = 1  # omp_pause_soft: what threads have of their own is kept


@cache
def _pause() -> Callable[[], object]:
    try:
        pause = ctypes.CDLL("libgomp.so.1").omp_pause_resource_all
    except (OSError, AttributeError):
        return lambda: None  # another OpenMP runtime: nothing to give back
    soft = ctypes.c_int(_SOFT)
    return lambda: pause(soft)


@cache
def _release() -> Callable[[], object]:
    # There operators run in the caller's thread, and would make its workers anew every time.
    is_naive = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"
    return (lambda: None) if is_naive else _pause()


def release_threads() -> None:
    """Give back the OpenMP workers of the thread that calls this.

    MXNet computes in a thread of its own. Workers that the caller's thread once made for something
    else (filling a parameter is enough) make libgomp count more threads than cores, and then it
    puts idle ones to sleep at once: SqueezeNet was measured to run 1.4 times as long, a training
    step of a Tree-LSTM 1.24 times. They come again when they are needed. Without any to give back a
    call takes under a microsecond.
    """
    _release()()


# A forked child has none of the workers, and would wait for them for ever when it gives them back.
os.register_at_fork(before=lambda: _pause()())
