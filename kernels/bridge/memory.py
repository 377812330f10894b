"""Who else has the memory of arrays."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from graphopt.kernels import bridge
from graphopt.kernels.bridge.versions import fit


def is_shared(mxnet: Any, array: Any) -> bool:
    """Whether others may have its memory: views, executors, tapes, or operators still to run."""
    library = _functions(mxnet)
    return library is None or library.graphopt_memory_users(array.handle) != 1


def have_one_memory(mxnet: Any, array: Any, other: Any) -> bool:
    """Whether two arrays are known to lie in the same memory."""
    library = _functions(mxnet)
    if library is None:
        return False
    return bool(library.graphopt_have_one_memory(array.handle, other.handle))


def memory_of(mxnet: Any, array: Any) -> int:
    """A number for the memory of an array, which views share; another may get it once it is freed.

    Where that is not known, a number for the array itself.
    """
    library = _functions(mxnet)
    return id(array) if library is None else int(library.graphopt_memory_of(array.handle))


def may_be_view(mxnet: Any, array: Any) -> bool:
    """Whether an array may be a part of another one, or have its memory in another shape."""
    library = _functions(mxnet)
    return library is None or bool(library.graphopt_is_view(array.handle))


def is_known(mxnet: Any) -> bool:
    """Whether memory of arrays can be told apart."""
    return _functions(mxnet) is not None


@cache
def _functions(mxnet: Any) -> ctypes.CDLL | None:
    """``None`` without a bridge that knows how this build of MXNet lays out arrays."""
    if not fit(mxnet):
        return None
    library = bridge.load(mxnet)
    library.graphopt_memory_users.argtypes = [ctypes.c_void_p]
    library.graphopt_memory_users.restype = ctypes.c_int64
    library.graphopt_have_one_memory.argtypes = [ctypes.c_void_p] * 2
    library.graphopt_is_view.argtypes = [ctypes.c_void_p]
    library.graphopt_memory_of.argtypes = [ctypes.c_void_p]
    library.graphopt_memory_of.restype = ctypes.c_int64
    return library
