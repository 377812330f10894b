"""Numbers of arrays, read where they lie while nobody writes to them."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
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

    Raises:
        GraphoptError: MXNet's engine does not take it.
        MXNetError: what was to write an array has failed.
    """
    found = in_place(
        arrays, lambda numbers: [] if any(n is None for n in numbers) else [read(*numbers)]
    )
    return found[0] if found else read(*_copied(arrays))


def digests(arrays: Sequence[Any]) -> list[int]:
    """Numbers for what dense arrays hold: another for other bits, but in one case of 2**64."""
    mx = import_mxnet()
    found = in_place(
        arrays, lambda numbers: [None if n is None else digest_of(mx, n) for n in numbers]
    )
    return [
        digest_of(mx, *_copied([array])) if digest is None else digest
        for array, digest in zip(arrays, found, strict=True)
    ]


def in_place(arrays: Sequence[Any], read: Callable[[list[Any]], T]) -> T:
    """What ``read`` returns for the numbers of arrays; None in place of those to be copied.

    This is no context manager, as an interrupt (Ctrl-C) may raise at the start of any function,
    such as ``__exit__``: arrays would be held, and nobody could write to them, for ever.
    """
    mx = import_mxnet()
    is_on_host = all(array.ctx.device_type == "cpu" for array in arrays)
    if not (arrays and is_on_host and fit(mx)):
        return read([None] * len(arrays))
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
            return read(
                [None if at else numbers_at(a) for a, at in zip(arrays, laid_out, strict=True)]
            )
        finally:
            release(holding)


def _copied(arrays: Sequence[Any]) -> list[Any]:
    with import_mxnet().autograd.pause():
        return [view_of(array.copy()) for array in arrays]


@cache
def _functions(mxnet: Any) -> ctypes.CDLL:
    library = bridge.load(mxnet)
    holding = ctypes.POINTER(ctypes.c_void_p)
    library.graphopt_hold.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, holding]
    library.graphopt_release.restype = None
    library.graphopt_release.argtypes = [holding]
    return library
