"""Whether arrays were written, and what they hold."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.errors import GraphoptError
from graphopt.kernels import bridge


class Writes:
    """How often arrays had been written when it was made or last asked for those that were.

    Of writes past MXNet's engine, through memory shared by numpy or DLPack, nothing is known.
    Neither is of those to auxiliary states by training that MXNet planned, so these are compared.
    """

    def __init__(self, mxnet: Any, arrays: Sequence[Any], states: Sequence[Any] = ()) -> None:
        """Waits for what is being written.

        Args:
            mxnet: the module, of a build that :func:`graphopt.kernels.bridge.versions.fit`.
            arrays: NDArrays of any shapes and dtypes.
            states: those of them of which not all writes are counted.

        Raises:
            GraphoptError: an operator that writes one of them has failed.
        """
        self._library, self._arrays = _functions(mxnet), list(arrays)
        self._handles = (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays])
        self._states = list(states)
        self._state_handles = (ctypes.c_void_p * len(states))(*[array.handle for array in states])
        self._counts, self._held = self._count(), self._hold()

    def are_none(self) -> bool:
        """Whether no array was written, or is to be.

        That takes tens of nanoseconds for each, and reading the states.
        """
        count = len(self._arrays)
        if self._library.graphopt_is_written(self._handles, count, self._counts):
            return False
        return not self._states or self._hold() == self._held

    def touched(self) -> list[Any]:
        """The arrays that were written; they count as unwritten from now on.

        Raises:
            GraphoptError: an operator that writes one of them has failed.
        """
        before, self._counts = self._counts, self._count()
        rows = zip(self._arrays, before, self._counts, strict=True)
        found = {id(array): array for array, then, now in rows if then != now}
        held, self._held = self._held, self._hold()
        if held != self._held:
            found |= {id(state): state for state in self._states}
        return list(found.values())

    def _count(self) -> Any:
        counts = (ctypes.c_uint64 * len(self._arrays))()
        if self._library.graphopt_count_writes(self._handles, len(self._arrays), counts):
            raise GraphoptError(self._library.graphopt_error().decode())
        return counts

    def _hold(self) -> int:
        """A number for what the states hold."""
        found = ctypes.c_uint64()
        count = len(self._states)
        if self._library.graphopt_digest_arrays(self._state_handles, count, ctypes.byref(found)):
            raise GraphoptError(self._library.graphopt_error().decode())
        return found.value


def digest_of(mxnet: Any, values: npt.NDArray[Any]) -> int:
    """A number for what an array holds: another for other bits, but in one case of 2**64."""
    values = np.ascontiguousarray(values)
    return int(_functions(mxnet).graphopt_digest(values.ctypes.data, values.nbytes))


@cache
def _functions(mxnet: Any) -> ctypes.CDLL:
    library = bridge.load(mxnet)
    library.graphopt_count_writes.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.graphopt_is_written.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.graphopt_digest_arrays.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.graphopt_digest.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.graphopt_digest.restype = ctypes.c_uint64
    return library
