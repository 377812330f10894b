"""Numbers of arrays, read where they lie while nobody writes to them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy.typing as npt

from graphopt.backend.arrays import numbers_at, view_of
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.kernels import bridge
from graphopt.kernels.bridge.versions import fit
from graphopt.kernels.bridge.written import digest_of


@contextmanager
def held(arrays: Sequence[Any]) -> Iterator[list[npt.NDArray[Any]]]:
    """The numbers of dense arrays as long as the context lasts.

    MXNet's convolutions and dense layers bring the weights of inference into oneDNN's order in
    place, whatever thread runs them; that is put off until the context is left. Where they are in
    such an order already, and where MXNet does not let them be held, they are copied.

    Raises:
        GraphoptError: MXNet's engine does not take it.
        MXNetError: what was to write an array has failed.
    """
    mx = import_mxnet()
    is_on_host = all(array.ctx.device_type == "cpu" for array in arrays)
    if arrays and is_on_host and fit(mx):
        library, count = _functions(mx), len(arrays)
        handles = (ctypes.c_void_p * count)(*[array.handle for array in arrays])
        laid_out = (ctypes.c_int * count)()
        for array in arrays:
            array.wait_to_read()
        holding = library.graphopt_hold(handles, count, laid_out)
        if holding is None:
            raise GraphoptError(library.graphopt_error().decode())
        try:
            if not any(laid_out):
                yield [numbers_at(array) for array in arrays]
                return
        finally:
            library.graphopt_release(holding)
    with mx.autograd.pause():
        copies = [array.copy() for array in arrays]
    yield [view_of(copy) for copy in copies]


def digest(array: Any) -> int:
    """A number for what a dense array holds: another for other bits, but in one case of 2**64."""
    with held([array]) as (numbers,):
        return digest_of(import_mxnet(), numbers)


@cache
def _functions(mxnet: Any) -> ctypes.CDLL:
    library = bridge.load(mxnet)
    library.graphopt_hold.restype = ctypes.c_void_p
    library.graphopt_hold.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    library.graphopt_release.restype = None
    library.graphopt_release.argtypes = [ctypes.c_void_p]
    return library
