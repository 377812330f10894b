"""Arrays that come from a graph whose backward is over: states carried from step to step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge


def apart(arrays: Sequence[Any]) -> Sequence[Any]:
    """The arrays, those that come from a graph that is used up without it.

    They are joined with others, of which gradients are wanted, and MXNet refuses a backward that
    leads to such a graph, whatever is done with them.
    """
    is_used_up = _is_used_up()
    if is_used_up is None:
        return arrays
    return [array.detach() if is_used_up(array.handle) else array for array in arrays]


@cache
def _is_used_up() -> Callable[[Any], int] | None:
    mx = import_mxnet()
    if bridge.why_not(mx) is not None:
        return None
    found: Any = bridge.load(mx).graphopt_is_used_up
    found.argtypes = [ctypes.c_void_p]
    return lambda handle: int(found(handle))
