"""Operators that choose values by index arrays. Indices may be floats; they are cut to integers."""

from __future__ import annotations

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table, narrow


def bounded(call: Call, index: Array, size: int, mode: str) -> Array:
    """Integer indices within [0, size): clipped, or wrapped around.

    Raises:
        UnsupportedOp: the mode is another one; "raise" is an error inside MXNet's engine.
    """
    index = narrow(index, np.int64)
    if mode == "clip":
        return np.clip(index, 0, size - 1)
    if mode == "wrap":
        return index % size
    raise call.unsupported(f"with mode={mode!r}")


def _embedding(call: Call) -> Outputs:
    """Embedding: rows of the weight, (*indices.shape, output_dim); wrong indices are clipped."""
    index, weight = call.inputs
    return [weight[bounded(call, index, weight.shape[0], "clip")]]


def _take(call: Call) -> Outputs:
    """Slices along one axis, whose place the axes of the indices take."""
    x, index = call.inputs
    axis = call.axis(default=0)
    return [np.take(x, bounded(call, index, x.shape[axis], call.text("mode", "clip")), axis)]


def _pick(call: Call) -> Outputs:
    """One value along the axis for each index; the indices lack that axis or have length 1."""
    x, index = call.inputs
    axis = call.axis(default=-1)
    index = bounded(call, index, x.shape[axis], call.text("mode", "clip"))
    lengths = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    out = np.take_along_axis(x, index.reshape(lengths), axis)
    kept = call.flag("keepdims")
    return [out if kept else _at_least_1d(np.squeeze(out, axis))]


def _at_least_1d(x: Array) -> Array:
    return x if x.ndim else x.reshape(1)


def _batch_take(call: Call) -> Outputs:
    """For each row of a matrix, the value in the column that the index names."""
    x, index = call.inputs
    columns = bounded(call, index.ravel(), x.shape[1], "clip")
    return [x[np.arange(len(columns)), columns].reshape(index.shape)]


def _gather_nd(call: Call) -> Outputs:
    """Indices (M, ...) address the first M axes of the data; negative ones count from the end."""
    x, index = call.inputs
    return [x[tuple(narrow(index, np.int64))]]


def _scatter_nd(call: Call) -> Outputs:
    """Zeros of `shape`, and the data where the indices (M, ...) point; the last duplicate stays."""
    values, index = call.inputs
    out = np.zeros(call.ints("shape"), values.dtype)
    out[tuple(narrow(index, np.int64))] = values
    return [out]


def _one_hot(call: Call) -> Outputs:
    """A new last axis of `depth`; an index outside it gives a row of off_value."""
    index = narrow(call.x, np.int64)
    hit = index[..., None] == np.arange(call.integer("depth"))
    on, off = call.number("on_value", 1.0), call.number("off_value", 0.0)
    return [narrow(np.where(hit, on, off), call.dtype(np.float32))]


def _where(call: Call) -> Outputs:
    """A condition of the data's shape, or a vector that chooses whole slices of the first axis."""
    condition, x, y = call.inputs
    if condition.ndim != x.ndim:
        condition = condition.reshape((-1,) + (1,) * (x.ndim - 1))
    return [np.where(condition != 0, x, y)]


def _boolean_mask(call: Call) -> Outputs:
    """The slices whose mask is not zero."""
    x, mask = call.inputs
    return [np.compress(mask != 0, x, call.axis(default=0))]


def _index_copy(call: Call) -> Outputs:
    """A copy of the old tensor, its rows at the indices replaced."""
    old, index, new = call.inputs
    out = old.copy()
    out[narrow(index, np.int64)] = new
    return [out]


def _ravel_multi_index(call: Call) -> Outputs:
    """(M, N) coordinates to N flat positions in an array of `shape`."""
    out = np.zeros(call.x.shape[1:], np.int64)
    for size, coordinate in zip(call.ints("shape"), narrow(call.x, np.int64), strict=True):
        out = out * size + coordinate
    return [narrow(out, call.x.dtype)]


def _unravel_index(call: Call) -> Outputs:
    """N flat positions to (M, N) coordinates."""
    coordinates = np.unravel_index(narrow(call.x, np.int64), call.ints("shape"))
    return [narrow(np.stack(coordinates), call.x.dtype)]


TABLE: Table = {
    "Embedding": _embedding,
    "_contrib_SparseEmbedding": _embedding,
    "_contrib_boolean_mask": _boolean_mask,
    "_contrib_index_copy": _index_copy,
    "_ravel_multi_index": _ravel_multi_index,
    "_unravel_index": _unravel_index,
    "batch_take": _batch_take,
    "choose_element_0index": _pick,
    "gather_nd": _gather_nd,
    "one_hot": _one_hot,
    "pick": _pick,
    "ravel_multi_index": _ravel_multi_index,
    "scatter_nd": _scatter_nd,
    "take": _take,
    "unravel_index": _unravel_index,
    "where": _where,
}
