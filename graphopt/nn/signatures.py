"""What a call is compiled for, asked of MXNet in one call instead of a handful for each array."""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.ir.sizes import Sizes
from graphopt.kernels import bridge
from graphopt.pipeline.base import Mode

#: Mode, how arguments are nested (and autograd's state, for what is traced in it), context, and
#: shape, dtype and storage of each array.
Signature = tuple[Mode, Hashable, Any, tuple[Any, ...]]

#: Numbers that the types of all arrays of a call may take; of more MXNet is asked one by one.
_ROOM: Final = 256
#: How many signatures are remembered; there are no more than a net has been called with.
_REMEMBERED: Final = 4096


class Signatures:
    """Signatures by what the bridge tells of a call's arrays."""

    def __init__(self) -> None:
        """None is known."""
        self._known: dict[tuple[bytes, Hashable], Signature] = {}

    def find(self, told: bytes | None, layout: Hashable) -> Signature | None:
        """The signature of an earlier call of which the bridge told the same."""
        return None if told is None else self._known.get((told, layout))

    def keep(self, told: bytes | None, layout: Hashable, signature: Signature) -> None:
        """Know it from now on."""
        if told is None:
            return
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[told, layout] = signature


def told_of(arrays: Sequence[Any]) -> bytes | None:
    """Autograd's state, and of each array context, dtype, storage and shape.

    ``None`` where the bridge is not there, or the arrays are too many.
    """
    types = _function() if bridge.is_loaded() else None
    if types is None:
        return None
    count = len(arrays)
    handles, numbers = (ctypes.c_void_p * count)(*[a.handle for a in arrays]), _Numbers()
    used = types(handles, count, numbers, _ROOM)
    return None if used < 0 else ctypes.string_at(numbers, used * ctypes.sizeof(ctypes.c_int64))


def signature_of(mode: Mode, layout: Hashable, ctx: Any, arrays: Sequence[Any]) -> Signature:
    """The signature of a call with those arrays."""
    return mode, layout, ctx, tuple((a.shape, a.dtype, a.stype) for a in arrays)


def sizes_of(signature: Signature) -> Sizes:
    """The extents of all its arrays."""
    return tuple(chain.from_iterable(shapes_of(signature)))


def shapes_of(signature: Signature) -> tuple[tuple[int, ...], ...]:
    """The shapes of its arrays."""
    return tuple(array[0] for array in signature[3])


def types_of(signature: Signature) -> tuple[object, ...]:
    """What a signature is but for its sizes."""
    return (*signature[:3], *((len(array[0]), *array[1:]) for array in signature[3]))


_Numbers = ctypes.c_int64 * _ROOM


@cache
def _function() -> Any:
    found = bridge.load(import_mxnet()).graphopt_types
    found.restype = ctypes.c_int64
    found.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
    return found
