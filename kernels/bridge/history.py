"""Which arrays autograd knows of."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from graphopt.kernels import bridge
from graphopt.kernels.bridge.versions import fit


def has_history(mxnet: Any, array: Any) -> bool:
    """Whether autograd knows of an array, as a variable or as what was computed of one.

    Not of one that it only noted as an input without gradient, as it does of what is computed with
    others that have one; where the bridge cannot tell, of these too.
    """
    library = _functions(mxnet)
    if library is None:
        return _takes_note(mxnet, array)
    return bool(library.graphopt_has_history(array.handle))


def _takes_note(mxnet: Any, array: Any) -> bool:
    """What MXNet says of it by itself; that it is not takes an error, some 40 us."""
    try:
        array._fresh_grad = array._fresh_grad  # refused where there is nothing to note it at
    except mxnet.MXNetError:
        return False
    return True


@cache
def _functions(mxnet: Any) -> ctypes.CDLL | None:
    """``None`` without a bridge that knows how this build of MXNet lays out arrays."""
    if not fit(mxnet):
        return None
    library = bridge.load(mxnet)
    library.graphopt_has_history.argtypes = [ctypes.c_void_p]
    return library if _is_right(mxnet, library) else None


def _is_right(mxnet: Any, library: ctypes.CDLL) -> bool:
    """Whether the bridge says of some arrays what is so; not of all where it cannot read them."""
    with mxnet.autograd.pause():
        array, variable = mxnet.nd.zeros((2,)), mxnet.nd.zeros((2,))
        variable.attach_grad()
        with mxnet.autograd.record():
            computed = variable + array
        known, unknown = (variable, computed), (array, computed.detach(), mxnet.nd.zeros((2,)))
    return all(library.graphopt_has_history(each.handle) for each in known) and not any(
        library.graphopt_has_history(each.handle) for each in unknown
    )
