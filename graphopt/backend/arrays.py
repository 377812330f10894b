"""NDArrays made fast, and copies between them past MXNet's engine."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError


def array_of(numbers: Any, ctx: Any) -> Any:
    """A copy of a numpy array, of its dtype, as an NDArray.

    In a fourth of the time of ``mx.nd.array``. ``mx.nd.from_numpy`` copies nothing but is no faster
    below 100,000 numbers, and MXNet's engine calls Python to let go of the memory: when the
    interpreter is ending meanwhile, the process aborts.

    Args:
        numbers: contiguous, of a dtype that MXNet has.
        ctx: where it is to be.
    """
    mx = import_mxnet()
    made = mx.nd.empty(numbers.shape, ctx, numbers.dtype)
    made._sync_copyfrom(numbers)
    return made


def address_of(array: Any) -> int:
    """Where the numbers of a dense array lie, on the host."""
    base, place = import_mxnet().base, ctypes.c_void_p()
    base.check_call(base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(place)))
    return place.value or 0


def view_of(array: Any) -> npt.NDArray[Any]:
    """The numbers of a dense array, not copied where it is on the host.

    They are those of now: to be read while nobody writes to the array, or written where nobody else
    has it yet. The array lives as long as the view.
    """
    if array.ctx.device_type == "gpu":
        numbers: npt.NDArray[Any] = array.asnumpy()
        return numbers
    base = import_mxnet().base
    base.check_call(base._LIB.MXNDArrayWaitToRead(array.handle))
    return numbers_at(array)


def numbers_at(array: Any) -> npt.NDArray[Any]:
    """As :func:`view_of`, of an array on the host that nobody writes to now, without waiting."""
    address = address_of(array)
    dtype, size = np.dtype(array.dtype), bytes_of(array)
    if not size:
        return np.empty(array.shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(address)
    memory.array = array
    return np.frombuffer(memory, dtype).reshape(array.shape)


class Alike:
    """Makes arrays of an array's shape, dtype and context, with any numbers in them.

    What MXNet is told is put together once, which is most of the time of ``mx.nd.empty``.
    """

    def __init__(self, array: Any) -> None:
        """``array``: a dense NDArray."""
        mx = import_mxnet()
        self._base, nd = mx.base, mx.ndarray.ndarray
        library, shape = self._base._LIB, array.shape
        is_long = nd._int64_enabled()
        extents = (ctypes.c_int64 if is_long else ctypes.c_uint) * len(shape)
        self._create = library.MXNDArrayCreateEx64 if is_long else library.MXNDArrayCreateEx
        dtype = nd._DTYPE_NP_TO_MX[np.dtype(array.dtype).type]
        numbers = (array.ctx.device_typeid, array.ctx.device_id, 0, dtype)
        self._told = (extents(*shape), *map(ctypes.c_int, (len(shape), *numbers)))
        self._class = mx.np.ndarray if isinstance(array, mx.np.ndarray) else mx.nd.NDArray

    def __call__(self) -> Any:
        """A new one."""
        handle = self._base.NDArrayHandle()
        self._base.check_call(self._create(*self._told, ctypes.byref(handle)))
        return self._class(handle)


class Copier:
    """Copies dense arrays on the host at once, in the thread that asks; not for two threads."""

    def __init__(self) -> None:
        """Nothing is copied yet."""
        mx = import_mxnet()
        self._base, self._sparse = mx.base, mx.nd.sparse.BaseSparseNDArray
        self._from, self._to = ctypes.c_void_p(), ctypes.c_void_p()
        self._refs = ctypes.byref(self._from), ctypes.byref(self._to)
        library = self._base._LIB
        self._wait, self._address = library.MXNDArrayWaitToRead, library.MXNDArrayGetData

    def copy(self, source: Any, target: Any, size: int) -> None:
        """So many bytes of ``source``, once it is computed; neither is written by others now.

        Raises:
            GraphoptError: it is sparse, and so has other numbers in another memory.
        """
        if isinstance(source, self._sparse):
            raise GraphoptError(
                f"a {source.stype} array is not dense: give it as .tostype('default')"
            )
        check, address = self._base.check_call, self._address
        check(self._wait(source.handle))
        check(address(source.handle, self._refs[0]))  # brings elements into plain order first
        check(address(target.handle, self._refs[1]))
        ctypes.memmove(self._to.value or 0, self._from.value or 0, size)


def bytes_of(array: Any) -> int:
    """How many bytes a dense array's numbers take."""
    return int(array.size * np.dtype(array.dtype).itemsize)
