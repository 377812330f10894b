"""What rows of an array have in common: their shape, dtype and device, as one object.

Kinds are interned, so that comparing types while recording is comparing identities.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from graphopt.batching import speedups
from graphopt.compat import import_mxnet
from graphopt.forking import lock
from graphopt.ir.types import dtype_name

_KINDS: dict[tuple[Any, ...], Kind] = {}
_BY_CODES: dict[tuple[Any, ...], Kind] = {}
_LIB = import_mxnet().base._LIB
_LOCK = lock()


class Kind:
    """The type of arrays of any number of rows: ``(rows, *tail)``.

    Attributes:
        tail: extents behind axis 0.
        dtype: name of the dtype.
        ctx: MXNet context.
    """

    __slots__ = ("ctx", "dtype", "tail")

    def __init__(self, tail: tuple[int, ...], dtype: str, ctx: Any) -> None:
        """Use :func:`kind`, which interns."""
        self.tail, self.dtype, self.ctx = tail, dtype, ctx

    def __repr__(self) -> str:
        extents = ",".join(str(extent) for extent in ("rows", *self.tail))
        return f"{self.dtype}[{extents}]"


def kind(tail: tuple[int, ...], dtype: Any, ctx: Any) -> Kind:
    """The one Kind of rows of shape ``tail``."""
    key = (tail, dtype, ctx)
    found = _KINDS.get(key)
    if found is None:
        named = (tail, dtype_name(dtype), ctx)
        with _LOCK:
            # Under the dtype as it was given, too: naming it takes longer than all the rest.
            found = _KINDS[key] = _KINDS.setdefault(named, Kind(*named))
    return found


def kind_of(array: Any) -> Kind:
    """The Kind of an NDArray's rows; its rank is at least 1."""
    return typed(array)[1]


def _typed(array: Any) -> tuple[tuple[int, ...], Kind]:
    """Shape and Kind in Python.

    By codes of dtype and device: NDArray's own properties make objects of them, which takes three
    times as long, and every leaf of every sample comes through here.
    """
    shape = array.shape
    handle = array.handle
    dtype, device, number = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _LIB.MXNDArrayGetDType(handle, ctypes.byref(dtype))
    _LIB.MXNDArrayGetContext(handle, ctypes.byref(device), ctypes.byref(number))
    key = (shape[1:], dtype.value, device.value, number.value)
    found = _BY_CODES.get(key)
    if found is None:
        found = _BY_CODES[key] = kind(shape[1:], array.dtype, array.ctx)
    return shape, found


def _fastest() -> Callable[[Any], tuple[tuple[int, ...], Kind]]:
    """The twin of :func:`_typed` in C++, if it is there; it asks for what it does not know."""
    module: Any = speedups.load()[0]
    mx = import_mxnet()
    if module is None or mx.ndarray.ndarray._int64_enabled():  # which has other functions
        return _typed
    asked = ("MXNDArrayGetShapeEx", "MXNDArrayGetDType", "MXNDArrayGetContext")
    found = [ctypes.cast(getattr(_LIB, name), ctypes.c_void_p).value for name in asked]
    module.ask(*found, _BY_CODES, _typed)
    fast: Callable[[Any], tuple[tuple[int, ...], Kind]] = module.typed
    return fast


#: Shape of a real array of at least one axis, and the Kind of its rows.
typed = _fastest()
