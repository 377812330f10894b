"""Arrays that are not there yet.

A pending array is an instance of a subclass of MXNet's array class with the same layout. Where the
array has its handle, the pending one has a :class:`Ref`, which tells its type and which tape it is
on. Once the value is there, the object gets its handle and becomes an ordinary array: its class is
changed, so that whoever holds it holds an array as MXNet makes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.recording.types import Type

if TYPE_CHECKING:
    from graphopt.recording.tape import Tape

mx = import_mxnet()
_NDArray: Any = mx.nd.NDArray
_NpArray: Any = mx.np.ndarray
_HANDLE: Any = _NDArray.__mro__[1].__dict__["handle"]
_WRITABLE: Any = _NDArray.__mro__[1].__dict__["writable"]


class Ref:
    """What is known of a pending array.

    Attributes:
        tape: it is on.
        number: of the value on the tape.
        type: its shape and dtype.
    """

    __slots__ = ("number", "tape", "type")

    def __init__(self, tape: Tape, number: int, type_: Type) -> None:
        """Plain values."""
        self.tape, self.number, self.type = tape, number, type_


def pending(ref: Ref, *, is_np: bool) -> Any:
    """A new pending array of ``mx.np`` or of ``mx.nd``."""
    cls = PendingNp if is_np else PendingNd
    made: Any = cls.__new__(cls)
    _HANDLE.__set__(made, ref)
    _WRITABLE.__set__(made, True)
    return made


def ref_of(array: Any) -> Ref:
    """What is known of a pending array."""
    ref: Ref = _HANDLE.__get__(array)
    return ref


def settle(array: Any, real: Any) -> None:
    """Make a pending array an ordinary one with the handle of ``real``, which is used up.

    Raises:
        UnsupportedError: ``real`` is sparse; arrays of those classes are laid out in another way.
    """
    if isinstance(real, mx.nd.sparse.BaseSparseNDArray):
        raise UnsupportedError(
            f"a recorded call made a {real.stype} array where a dense one was promised:"
            " graphopt.optimize(net, record=False) records nothing"
        )
    assert type(real) in (_NDArray, _NpArray), "a value was given away twice"
    handle, spent = real.handle, _Spent if type(real) is _NDArray else _SpentNp
    ordinary = _NDArray if type(array) is PendingNd else _NpArray
    # Stores alone, which no interrupt comes between.
    real.__class__ = spent
    array.__class__ = ordinary
    array.handle = handle


def _handle(self: Any) -> Any:
    """MXNet's handle: whatever needs it waits until everything recorded was run."""
    ref_of(self).tape.flush()
    return _HANDLE.__get__(self)


def _keep(self: Any) -> None:
    """NDArray's ``__del__`` would free a handle that is not there."""


def _dtype(self: Any) -> Any:
    return np.dtype(ref_of(self).type[1]).type


def _context(self: Any) -> Any:
    # A new one, as MXNet's: one that is entered twice at a time forgets what was before it.
    return mx.Context(ref_of(self).tape.ctx)


def _reshape(self: Any, *shape: Any, **kwargs: Any) -> Any:
    """As NDArray.reshape: the codes of the operator, and the number of elements stays."""
    if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
        shape = tuple(shape[0])
    shape = tuple(shape) or tuple(kwargs.get("shape", ()))
    found = mx.nd.Reshape(self, shape=shape, reverse=bool(kwargs.get("reverse", False)))
    if found.size != self.size:
        ref_of(self).tape.take_back(found)  # MXNet's operator would copy past the end
        kind = mx.MXNetError if found.size > self.size else ValueError  # as MXNet's
        raise kind(f"Cannot reshape array of size {self.size} into shape {shape}")
    return ref_of(self).tape.is_view(found, self, "reshape", found.shape)


def _reshape_view(self: Any, *shape: Any) -> Any:
    """As ndarray.reshape_view."""
    if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
        shape = tuple(shape[0])
    found = self.reshape(shape)
    return ref_of(self).tape.is_view(found, self, "reshape_view", found.shape)


def _basic(self: Any, key: tuple[Any, ...]) -> Any:
    """Integers, slices and None: one slice and one reshape, where MXNet may make a view."""
    spelled = [k for k in key if k is not None]
    spans = [_span(axis, k, self.shape[axis]) for axis, k in enumerate(spelled)]
    if any(span.step < 1 or not len(span) for span in spans):
        return _real(self)[key]
    is_np, tape = type(self) is PendingNp, ref_of(self).tape
    found = self
    if any(span != range(extent) for span, extent in zip(spans, self.shape, strict=True)):
        ends = tuple(zip(*[(s.start, s.stop, s.step) for s in spans], strict=True))
        found = tape.call("slice", (self,), ("begin", "end", "step"), ends, is_np=is_np)
    shape = _shape_after(key, spans)
    if not shape and not is_np:
        shape = (1,)
    if found.shape != shape:
        found = found.reshape(shape)
    return self if found is self else tape.is_view(found, self, "__getitem__", key)


def _span(axis: int, key: Any, extent: int) -> range:
    if isinstance(key, slice):
        return range(*key.indices(extent))
    if not -extent <= key < extent:
        raise IndexError(f"index {key} is out of bounds for axis {axis} with size {extent}")
    return range(int(key) % extent, int(key) % extent + 1)


def _shape_after(key: Sequence[Any], spans: Sequence[range]) -> tuple[int, ...]:
    shape, left = [], iter(spans)
    for k in key:
        if k is None:
            shape.append(1)
            continue
        length = len(next(left))
        if isinstance(k, slice):
            shape.append(length)
    return tuple(shape)


def _real(self: Any) -> Any:
    self.handle  # noqa: B018 - makes it
    return self


def _at(self: Any, index: int) -> Any:
    return _basic(self, (index, *[slice(None)] * (len(self.shape) - 1)))


def _slice(self: Any, start: Any, stop: Any) -> Any:
    return _basic(self, (slice(start, stop), *[slice(None)] * (len(self.shape) - 1)))


def _detach(self: Any) -> Any:
    found = _called(self, "BlockGrad", is_detach=True)
    return ref_of(self).tape.is_view(found, self, "detach", None)


def _copy(self: Any, *_args: Any, **_kwargs: Any) -> Any:
    return _called(self, "_copy")


def _astype(self: Any, dtype: Any, copy: bool = True) -> Any:
    if not copy and np.dtype(dtype) == np.dtype(ref_of(self).type[1]):
        return self
    return mx.nd.cast(self, dtype=dtype)


def _called(self: Any, op: str, **more: bool) -> Any:
    return ref_of(self).tape.call(op, (self,), (), (), is_np=type(self) is PendingNp, **more)


_COMMON: Final[dict[str, Any]] = {
    "__slots__": (),
    "handle": property(_handle),
    "__del__": _keep,
    "shape": property(lambda self: ref_of(self).type[0]),
    "ndim": property(lambda self: len(ref_of(self).type[0])),
    "size": property(lambda self: math.prod(ref_of(self).type[0])),
    "dtype": property(_dtype),
    "context": property(_context),
    "ctx": property(_context),
    "stype": property(lambda self: "default"),
    "_at": _at,
    "_slice": _slice,
    "_get_nd_basic_indexing": _basic,
    "_get_np_basic_indexing": _basic,
    "detach": _detach,
    "copy": _copy,
}

PendingNd: Any = type("PendingNd", (_NDArray,), {**_COMMON, "reshape": _reshape, "astype": _astype})
PendingNp: Any = type("PendingNp", (_NpArray,), {**_COMMON, "reshape_view": _reshape_view})
PENDING: Final = frozenset({PendingNd, PendingNp})
_Spent: Any = type("_Spent", (_NDArray,), {"__slots__": (), "__del__": _keep})
_SpentNp: Any = type("_SpentNp", (_NpArray,), {"__slots__": (), "__del__": _keep})
