"""``x[...]`` and ``x.reshape(...)`` of Lazy values: rows are only chosen, nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt.batching import special
from graphopt.batching.lazy import Lazy, real
from graphopt.batching.recorder import ACTIVE, Unrecorded
from graphopt.batching.runs import COUNT_BITS, COUNT_MASK
from graphopt.batching.sums import settled
from graphopt.compat import import_mxnet

_INTEGERS = (int, np.integer)


def get(x: Lazy, key: Any) -> Any:
    """As ``NDArray.__getitem__``: the same values, and IndexError where it raises that."""
    if type(key) is tuple and len(key) == 2 and type(key[1]) is int and _is_all(key[0]):
        found = _picked(x, key[1])
        if found is not None:
            return found
    x = settled(x)
    if isinstance(key, _INTEGERS) and not isinstance(key, bool):
        return _row(x, int(key))
    if isinstance(key, slice):
        return _rows(x, key)
    if isinstance(key, np.ndarray) and key.ndim == 1 and key.dtype.kind in "iu":
        key = key.tolist()
    if isinstance(key, list) and key and all(isinstance(k, _INTEGERS) for k in key):
        return _listed(x, [int(k) for k in key])
    parts = key if isinstance(key, tuple) else (key,)
    if all(_is_basic(k) for k in parts):
        return _basic(x, parts)
    return _advanced(x, key)


def reshape(x: Lazy, shape: Sequence[Any], **kwargs: Any) -> Any:
    """As ``NDArray.reshape``.

    Raises:
        ValueError: the number of elements would change.
    """
    nd = import_mxnet().nd
    x = settled(x)
    if len(shape) == 1 and isinstance(shape[0], (list, tuple)):
        shape = tuple(shape[0])
    shape = tuple(shape) or tuple(kwargs.get("shape", ()))
    reverse = kwargs.get("reverse", False)
    found = nd.Reshape(x, shape=shape, reverse=True) if reverse else nd.Reshape(x, shape=shape)
    if found.size != x.size:
        raise ValueError(f"Cannot reshape array of size {x.size} into shape {shape}")
    # Unlike the operator's result, a view of all of an argument follows what is written into it.
    return x if found.shape == x.shape and found.run == x.run else found


def _is_all(key: Any) -> bool:
    # Not `key == slice(None)`, which arrays compare element by element.
    return type(key) is slice and key.start is key.stop is key.step is None


def _is_basic(key: Any) -> bool:
    return (isinstance(key, (*_INTEGERS, slice)) and not isinstance(key, bool)) or (
        key is None or key is Ellipsis
    )


def _picked(x: Lazy, at: int) -> Lazy | None:
    """``x[:, at]`` of one row, as samples read the words of a sentence; None if it is not so."""
    recorder, tail = ACTIVE.recorder, x.kind.tail
    if recorder is None or x.recorder is not recorder or recorder.state != recorder.outside:
        return None
    if x.rows != 1 or x.runs is not None or not tail or type(x) is not Lazy:
        return None
    if not -tail[0] <= at < tail[0]:
        return None
    # The row's parts are rows, too: only places change.
    parts = recorder.views.get((x.run, tail))
    if parts is None:
        if len(tail) < 2:
            return None  # those of a row of numbers are there if an Embedding has read it
        parts = special.as_shape(recorder, x, tail)
        recorder.views[x.run, tail] = parts  # as_shape finds it after more work
    if parts.runs is not None:
        return None
    at %= tail[0]
    run = (parts.run & ~COUNT_MASK) + (at << COUNT_BITS) + 1
    return Lazy(recorder, run, 1, parts.kind, parts.depth)


def _row(x: Lazy, at: int) -> Any:
    """One row, without axis 0; MXNet gives a scalar as ``(1,)``."""
    rows = x.shape[0]
    if not -rows <= at < rows:
        raise IndexError(f"index {at} is out of bounds for axis 0 with size {rows}")
    at %= rows
    row = _cut(x, at, at + 1)
    return reshape(row, (x.kind.tail or (1,),))


def _rows(x: Lazy, key: slice) -> Any:
    if key.step not in (None, 1):
        return _listed(x, list(range(*key.indices(x.shape[0]))))
    if key.start is None and key.stop is None:
        return x
    begin, end, _ = key.indices(x.shape[0])
    if begin >= end:
        # What MXNet does with nothing is MXNet's to say.
        return import_mxnet().nd.NDArray.__getitem__(real(x), key)
    return _cut(x, begin, end)


def _cut(x: Lazy, begin: int, end: int) -> Any:
    recorder = ACTIVE.recorder
    if x.recorder is recorder and recorder.state == recorder.outside:
        return special.placed(recorder, x, special.rows_between(x, begin, end), end - begin)
    return import_mxnet().nd.slice_axis(x, axis=0, begin=begin, end=end)


def _listed(x: Lazy, rows: Sequence[int]) -> Any:
    nd = import_mxnet().nd
    count = x.shape[0]
    if not rows:
        return nd.NDArray.__getitem__(real(x), rows)
    for at in rows:
        if not -count <= at < count:
            raise IndexError(f"index {at} is out of bounds for axis 0 with size {count}")
    parts = [_cut(x, at % count, at % count + 1) for at in rows]
    return nd.concat(*parts, dim=0)


def _basic(x: Lazy, key: tuple[Any, ...]) -> Any:
    """Integers, slices, None and Ellipsis: rows are cut first, the other axes by one operator."""
    given = sum(k is not None and k is not Ellipsis for k in key)
    if given > x.ndim:
        raise IndexError(f"too many indices ({given}) for array with {x.ndim} dimensions")
    key = _spelled_out(key, x.ndim - given)
    spans = _spans(x.shape, [k for k in key if k is not None])
    if any(span.step < 1 or not len(span) for span in spans):
        return import_mxnet().nd.NDArray.__getitem__(real(x), key)
    found = _sliced(x, spans)
    lengths = iter([len(span) for span in spans])
    shape = []
    for k in key:
        if k is None:
            shape.append(1)
        elif isinstance(k, slice):
            shape.append(next(lengths))
        else:
            next(lengths)  # an integer takes its axis away
    return reshape(found, tuple(shape) or (1,))


def _advanced(x: Lazy, key: Any) -> Any:
    """Index arrays: they are made ready at once, as MXNet insists on real ones."""
    mx = import_mxnet()
    parts = key if isinstance(key, tuple) else (key,)
    parts = tuple(real(k) if isinstance(k, Lazy) else k for k in parts)
    with Unrecorded():
        expanded, _ = mx.ndarray.ndarray.indexing_key_expand_implicit_axes(parts, x.shape)
        indices, new_axes = mx.nd.NDArray._get_index_nd(x, expanded)
    found = mx.nd.gather_nd(x, indices)
    shape = list(found.shape)
    for axis in new_axes or ():
        shape.insert(axis, 1)
    return reshape(found, tuple(shape))


def _spans(shape: Sequence[int], key: Sequence[Any]) -> list[range]:
    """The places every axis is read at."""
    found = []
    for axis, (k, extent) in enumerate(zip(key, shape, strict=True)):
        if isinstance(k, slice):
            found.append(range(*k.indices(extent)))
        elif -extent <= k < extent:
            found.append(range(int(k) % extent, int(k) % extent + 1))
        else:
            raise IndexError(f"index {k} is out of bounds for axis {axis} with size {extent}")
    return found


def _sliced(x: Lazy, spans: Sequence[range]) -> Any:
    """``x`` at the spans, with as many axes; whole axes are not touched."""
    nd = import_mxnet().nd
    shape = x.shape
    cut = [axis for axis, span in enumerate(spans) if span != range(shape[axis])]
    if 0 in cut:
        span = spans[0]
        x = _rows(x, slice(span.start, span.stop, span.step))
        cut.remove(0)
    if len(cut) == 1 and spans[cut[0]].step == 1:
        return nd.slice_axis(x, axis=cut[0], begin=spans[cut[0]].start, end=spans[cut[0]].stop)
    if not cut:
        return x
    chosen = [spans[axis] if axis in cut else None for axis in range(len(spans))]
    return nd.slice(
        x,
        begin=tuple(None if span is None else span.start for span in chosen),
        end=tuple(None if span is None else span.stop for span in chosen),
        step=tuple(None if span is None else span.step for span in chosen),
    )


def _spelled_out(key: tuple[Any, ...], missing: int) -> tuple[Any, ...]:
    fill = (slice(None),) * missing
    for at, k in enumerate(key):
        if k is Ellipsis:
            return (*key[:at], *fill, *key[at + 1 :])
    return (*key, *fill)


def _reshape(self: Lazy, *shape: Any, **kwargs: Any) -> Any:
    """As NDArray's, but never a view that can be written to."""
    return reshape(self, shape, **kwargs)


Lazy.__getitem__ = get  # hooks.py may set a faster one
Lazy._at = get
Lazy._slice = lambda self, start, stop: get(self, slice(start, stop))
Lazy.reshape = _reshape
