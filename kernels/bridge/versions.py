"""How often MXNet wrote arrays, as its engine counts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from graphopt.errors import GraphoptError
from graphopt.kernels import bridge

_WRITES = 3


class Versions:
    """How often arrays had been written when all that was started before had run."""

    def __init__(self, mxnet: Any, arrays: Sequence[Any]) -> None:
        """Returns at once: MXNet's engine notes the numbers when it comes to it.

        Args:
            mxnet: the module.
            arrays: of any shapes and dtypes; they have to live until the numbers are read.

        Raises:
            GraphoptError: the engine does not take it.
        """
        self._library = _functions(mxnet)
        self._count = len(arrays)
        handles = (ctypes.c_void_p * self._count)(*[array.handle for array in arrays])
        self._noted = self._library.graphopt_versions_note(handles, ctypes.c_int64(self._count))
        if self._noted is None:
            raise GraphoptError(self._library.graphopt_error().decode())

    def read(self) -> list[int]:
        """The numbers, waiting for them; not what they start from, but what they rise by counts."""
        counts = (ctypes.c_uint64 * self._count)()
        self._library.graphopt_versions_read(self._noted, counts)
        return list(counts)

    def __del__(self) -> None:
        """Give back what the bridge keeps."""
        if getattr(self, "_noted", None) is not None:
            self._library.graphopt_versions_free(self._noted)


def fit(mxnet: Any) -> bool:
    """Whether there is a bridge, and this build of MXNet has the numbers where it reads them."""
    return why_unfit(mxnet) is None


def why_unfit(mxnet: Any) -> str | None:
    """Why they cannot be read, or ``None`` if they can."""
    why = bridge.why_not(mxnet)
    if why is None and not _is_laid_out(mxnet):
        return "this MXNet lays out arrays in another way"
    return why


@cache
def _is_laid_out(mxnet: Any) -> bool:
    """Whether what is read of arrays is right; tried out once."""
    nd = mxnet.nd
    with mxnet.autograd.pause():
        array, other = nd.zeros((2,)), nd.zeros((2,))
        same = array.detach()  # another NDArray on the same memory
        handles = [given.handle for given in (array, same, other)]
        if not _functions(mxnet).graphopt_variables_fit(*handles):
            return False
        before = Versions(mxnet, (array, same, other)).read()
        for value in range(_WRITES):
            array[:] = value
        after = Versions(mxnet, (array, same, other)).read()
    risen = [now - then for now, then in zip(after, before, strict=True)]
    return risen == [_WRITES, _WRITES, 0]


@cache
def _functions(mxnet: Any) -> ctypes.CDLL:
    library = bridge.load(mxnet)
    library.graphopt_variables_fit.argtypes = [ctypes.c_void_p] * 3
    library.graphopt_versions_note.restype = ctypes.c_void_p
    library.graphopt_versions_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.graphopt_versions_read.restype = None
    library.graphopt_versions_free.argtypes = [ctypes.c_void_p]
    library.graphopt_versions_free.restype = None
    return library
