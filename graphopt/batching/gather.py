"""The two operations that bring rows together: gather and segmented reduction.

On plain MXNet operators, so that autograd differentiates them. What depends on the structure alone
(index arrays) is made once, by plan.py, and is kept with the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphopt.backend.arrays import array_of
from graphopt.batching.runs import Ints
from graphopt.compat import import_mxnet


class Indices(NamedTuple):
    """Row numbers as MXNet's two operators want them: ``(n,)`` and ``(1, n)``, int32."""

    flat: Any
    column: Any


def index_array(indices: Ints, ctx: Any) -> Indices:
    """Row numbers as NDArrays."""
    flat = array_of(indices.astype(np.int32), ctx)
    return Indices(flat, flat.reshape((1, -1)))


def gather(sources: Sequence[Any], indices: Indices) -> Any:
    """Rows ``indices`` of the sources, taken as one array with one behind the other.

    With gradients by ``gather_nd``: backward of ``take`` fails ("wrong req") where MXNet finds that
    nobody wants its result, and runs it nevertheless; it is seen with arrays that earlier graphs
    have read. Without, by ``take``, which is faster.

    Args:
        sources: NDArrays ``(rows, *tail)``, alike but for the rows.
        indices: ``n`` of them, see :func:`index_array`.

    Returns:
        ``(n, *tail)``.
    """
    nd = import_mxnet().nd
    whole = sources[0] if len(sources) == 1 else nd.concat(*sources, dim=0)
    if import_mxnet().autograd.is_recording():
        return nd.gather_nd(whole, indices.column)
    return nd.take(whole, indices.flat, axis=0)


class Segments:
    """Where each segment's rows are, made ready for :func:`segment_reduce`.

    Segments of one length are reduced together: their first rows, then their second rows, and so
    on, which are dense arrays that can be added elementwise.

    Attributes:
        rows: entry numbers in the order in which the values must be gathered.
    """

    def __init__(self, lengths: Ints, ctx: Any) -> None:
        """``lengths`` has the number of rows of each segment, none of them 0."""
        order = np.argsort(lengths, kind="stable")
        starts = (np.cumsum(lengths) - lengths)[order]
        kinds, counts = np.unique(lengths, return_counts=True)
        self.buckets = [(int(k), int(n)) for k, n in zip(kinds, counts, strict=True)]
        parts, begin = [], 0
        for length, count in self.buckets:
            firsts = starts[begin : begin + count]
            parts.append((np.arange(length)[:, None] + firsts).ravel())
            begin += count
        self.rows: Ints = np.concatenate(parts)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        in_order = bool((order == np.arange(len(order))).all())
        self.back = None if in_order else index_array(back, ctx)


def segment_reduce(values: Any, segments: Segments, how: str) -> Any:
    """Reduce each segment of rows to one row.

    Args:
        values: ``(entries, *tail)``, in the order of ``segments.rows``.
        segments: their structure.
        how: ``sum``, ``mean``, ``max`` or ``min``.

    Returns:
        ``(number of segments, *tail)``, in their order.
    """
    nd = import_mxnet().nd
    parts, start = [], 0
    for length, count in segments.buckets:
        end = start + length * count
        part = values
        if len(segments.buckets) > 1:
            part = nd.slice_axis(values, axis=0, begin=start, end=end)
        parts.append(_reduce_blocks(nd, part, length, how))
        start = end
    whole = parts[0] if len(parts) == 1 else nd.concat(*parts, dim=0)
    return whole if segments.back is None else gather([whole], segments.back)


def _reduce_blocks(nd: Any, values: Any, length: int, how: str) -> Any:
    """Reduce ``length`` blocks of rows, one behind the other, elementwise."""
    if length == 1:
        return values
    if how in ("max", "min") or values.dtype == np.float16:
        # Not one by one, as the gradient where rows are equal is that of the operator, and float16
        # would be rounded in between.
        blocks = nd.Reshape(values, shape=(-4, length, -1, -2))
        return getattr(nd, how)(blocks, axis=0)
    total = nd.add_n(*nd.SliceChannel(values, num_outputs=length, axis=0))
    return total / length if how == "mean" else total
