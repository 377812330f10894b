"""What the source of CUDA kernels calls in numba's simulator, which runs them on numpy arrays."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from graphopt.kernels.cuda.device import LIBDEVICE

_WARP = 32


class _Swaps:
    """Shuffles between the simulator's threads, which it has not: a meeting point per warp."""

    def __init__(self) -> None:
        self._meetings: dict[int, threading.Barrier] = {}
        self._values: dict[tuple[int, int], list[Any]] = {}
        self._lock = threading.Lock()

    def shuffle(self, value: Any, mask: int) -> Any:
        thread: Any = threading.current_thread()
        # The simulator keeps the number of a thread in its block on its thread object.
        warp, lane = divmod(thread.thread_id, _WARP)
        # Two lists in turn: who has not read yet is waited for before the list is used again.
        turn = thread.graphopt_turn = 1 - getattr(thread, "graphopt_turn", 0)
        with self._lock:
            meeting = self._meetings.setdefault(warp, threading.Barrier(_WARP))
            values = self._values.setdefault((warp, turn), [None] * _WARP)
        values[lane] = value
        meeting.wait(60)
        return values[lane ^ mask]


def scope(dtype: str) -> dict[str, Any]:
    """As :func:`graphopt.kernels.cuda.device.scope`."""
    number = np.dtype(dtype).type
    # Allocated here because the simulator may give each thread an array of its own.
    kept = np.empty(1024, dtype)
    functions: dict[str, Callable[..., Any]] = {
        op: getattr(np, op)
        for op in LIBDEVICE
        if op not in ("erf", "gamma", "gammaln", "pow", "rcbrt", "round", "rsqrt")
    }
    functions |= {
        "erf": math.erf,
        "gamma": _gamma,
        "gammaln": lambda x: math.inf if x <= 0 and x == np.floor(x) else math.lgamma(x),
        # Of a single power numpy takes square roots, whose signs are others.
        "pow": lambda x, y: np.power(x, [y, y])[0],
        "rcbrt": lambda x: 1 / np.cbrt(x),
        "round": lambda x: np.trunc(x) + np.copysign(abs(x - np.trunc(x)) >= 0.5, x),
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "half": np.float16,
        "add": np.add,
        "mul": np.multiply,
    }
    return {f"{op}_": _rounded(f, number) for op, f in functions.items()} | {
        "number": number,
        "wide": int,
        "double": np.float64,
        "fmod": np.fmod,
        "index": lambda array, at: int(array[at]),
        "quotient": lambda a, b: a // b,
        "short_quotient": lambda a, b: a // b,
        "shuffle": _Swaps().shuffle,
        "shared_by_warps": lambda: kept,
        "shared_by_threads": lambda: kept,
    }


def _rounded(function: Callable[..., Any], number: Any) -> Callable[..., Any]:
    return lambda *args: number(function(*args))


def _gamma(x: float) -> float:
    if x == 0 or x == math.inf:
        return math.copysign(math.inf, x)
    if math.isnan(x) or x == -math.inf or (x < 0 and float(x).is_integer()):
        return math.nan
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf


def loader(stored: str, dtype: str, width: int) -> Any:
    """As :func:`graphopt.kernels.cuda.device.loader`, of flat arrays."""
    number = np.dtype(dtype).type

    def load(array: Any, index: int) -> Any:
        values = tuple(number(array[index + k]) for k in range(width))
        return values[0] if width == 1 else values

    return load


def storer(stored: str, _dtype: str, width: int) -> Any:
    """As :func:`graphopt.kernels.cuda.device.storer`, of flat arrays."""
    kind = np.dtype(stored).type

    def store(array: Any, index: int, *values: Any) -> None:
        for k, value in enumerate(values):
            array[index + k] = kind(value)

    return store
