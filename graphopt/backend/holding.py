"""Numbers of arrays, read where they lie while nobody writes to them."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, TypeVar

from graphopt.backend.arrays import numbers_at, view_of
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.kernels import bridge
from graphopt.kernels.bridge.versions import fit
from graphopt.kernels.bridge.written import digest_of

T = TypeVar("T")

#: Taken as long as arrays are held, and to fork: before that MXNet waits until all operations are
#: over, with Python's lock, which whoever holds arrays needs to give them back.
_HOLDING: Final = threading.RLock()
os.register_at_fork(
    before=_HOLDING.acquire, after_in_parent=_HOLDING.release, after_in_child=_HOLDING.release
)


def held(arrays: Sequence[Any], read: Callable[..., T]) -> T:
    """What ``read`` returns for the numbers of dense arrays.

    MXNet's convolutions and dense layers bring the weights of inference into oneDNN's order in
    place, whatever thread runs them; that is put off until ``read`` returns. Where they are in
    such an order already, and where MXNet does not let them be held, they are copied.

    This is no context manager, as an interrupt (Ctrl-C) may raise at the start of any function,
    such as ``__exit__``: arrays would be held, and nobody could write to them, for ever.

    Raises:
        GraphoptError: MXNet's engine does not take it.
        MXNetError: what was to write an array has failed.
    """
    mx = import_mxnet()
    is_on_host = all(array.ctx.device_type == "cpu" for array in arrays)
    if arrays and is_on_host and fit(mx):
        library, count = _functions(mx), len(arrays)
        handles = (ctypes.c_void_p * count)(*[array.handle for array in arrays])
        laid_out, release = (ctypes.c_int * count)(), library.graphopt_release
        for array in arrays:
            array.wait_to_read()
        holding = ctypes.c_void_p()  # written by the bridge, as an interrupt loses what it returns
        with _HOLDING:
            try:
                if library.graphopt_hold(handles, count, laid_out, holding):
                    raise GraphoptError(library.graphopt_error().decode())
                if not any(laid_out):
                    return read(*[numbers_at(array) for array in arrays])
            finally:
                release(holding)
    with mx.autograd.pause():
        copies = [array.copy() for array in arrays]
    return read(*[view_of(copy) for copy in copies])


def digests(arrays: Sequence[Any]) -> list[int]:
    """Numbers for what dense arrays hold: another for other bits, but in one case of 2**64."""
    # One by one: who holds several waits for all of them in the queues of MXNet's engine at once.
    read = partial(digest_of, import_mxnet())
    return [held([array], read) for array in arrays]


@cache
def _functions(mxnet: Any) -> ctypes.CDLL:
    library = bridge.load(mxnet)
    holding = ctypes.POINTER(ctypes.c_void_p)
    library.graphopt_hold.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, holding]
    library.graphopt_release.restype = None
    library.graphopt_release.argtypes = [holding]
    return library
