"""Rows of arrays on an NVIDIA GPU: gathered by an index, and added up by segments.

They are what message passing over trees does between kernels, and each is the other's gradient::

    rows = gather_rows(source, index)
    by_source = segment_sum(head, *inverse(index, len(source)))

    sums = segment_sum(source, begin, order)
    by_source = gather_rows(head, owners(begin, order))

Every sum has one thread, which adds in the order of rows: no atomics, results repeat bit by bit.
That suits many short segments; one of most rows is slow. Threads of a warp lie along columns, so
that they read and write adjacent elements, 16 bytes each where rows are a multiple of it. As in
:mod:`graphopt.kernels.cuda`, with ``NUMBA_ENABLE_CUDASIM=1`` numba interprets the kernels on numpy
arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from graphopt.errors import InputError
from graphopt.kernels.cuda.compiled import (
    SIMULATED,
    SOURCE,
    compiled,
    configured,
    defined,
    scope_of,
)
from graphopt.kernels.cuda.device import ACCESS
from graphopt.kernels.cuda.run import is_aligned, place_of
from graphopt.kernels.spec import Operand

#: Threads of a block, and blocks at most.
_THREADS = 64 if SIMULATED else 256
_BLOCKS = 2 if SIMULATED else 1 << 20

Array = np.ndarray[Any, Any]


# --- on the host ----------------------------------------------------------------------------------


def inverse(index: Array, rows: int) -> tuple[Array, Array]:
    """Where each row is gathered to, for the gradient of :func:`gather_rows`.

    Args:
        index: (count,), integers from 0 to ``rows - 1``.
        rows: of what is gathered from.

    Returns:
        ``begin`` (rows + 1,) and ``order`` (count,), int32: row ``r`` is gathered to
        ``order[begin[r]:begin[r + 1]]``, which ascend.

    Raises:
        InputError: the index is not one of ``rows`` rows.
    """
    index = np.asarray(index)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise InputError(
            f"an index has shape (count,) and integers, not {index.shape} and {index.dtype}"
        )
    outside = index[(index < 0) | (index >= rows)]
    if outside.size:
        raise InputError(f"an index of {rows} rows cannot have {outside[0]}")
    begin = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(index, minlength=rows), out=begin[1:])
    return begin, np.argsort(index, kind="stable").astype(np.int32)


def owners(begin: Array, order: Array | None = None) -> Array:
    """The segment of each row, for the gradient of :func:`segment_sum`; undoes :func:`inverse`.

    Args:
        begin: (segments + 1,), integers: from 0 to the number of rows, never descending.
        order: (rows,), each row once, as for :func:`segment_sum`.

    Returns:
        (rows,), int32.

    Raises:
        InputError: not every row is in one segment.
    """
    begin = np.asarray(begin)
    if begin.ndim != 1 or not begin.size or begin[0] or (np.diff(begin) < 0).any():
        raise InputError("segments begin at 0 and do not descend")
    found = np.repeat(np.arange(begin.size - 1, dtype=np.int32), np.diff(begin))
    if order is None:
        return found
    if not np.array_equal(np.sort(order), np.arange(found.size)):
        raise InputError(f"an order has each of {found.size} rows once")
    placed = np.empty_like(found)
    placed[order] = found
    return placed


# --- on the device --------------------------------------------------------------------------------


def gather_rows(source: Any, index: Any, *, out: Any = None, stream: Any = 0) -> Any:
    """``out[r, :] = source[index[r], :]``; work is put on ``stream``, nothing waits for it.

    Args:
        source: (rows, columns), float32 or float64. This and the others are C-contiguous arrays on
            the device, as for :func:`graphopt.kernels.cuda.run`.
        index: (count,), int32, from 0 to ``rows - 1``. Values are not checked: they lie on the
            device.
        out: (count, columns), of the dtype of ``source``, no part of it; by default a new array.
        stream: of numba.

    Returns:
        ``out``.

    Raises:
        InputError: a shape, dtype or layout is another.
    """
    dtype = _dtype(source)
    space: dict[int, int] = {}
    places = [
        place_of(source, Operand(dtype, (0, 1)), space),
        place_of(index, Operand("int32", (2,)), space),
    ]
    shape = (space[2], space[1])
    out, place = _output(out, dtype, shape, stream)
    _launch("gather_rows", dtype, [*places, place], shape, stream)
    return out


def segment_sum(
    source: Any, begin: Any, order: Any = None, *, out: Any = None, stream: Any = 0
) -> Any:
    """``out[s, :]``: the sum of ``source[begin[s]:begin[s + 1], :]``, zeros if there are none.

    With ``order``, of ``source[order[begin[s]:begin[s + 1]], :]``. Rows are added one by one, in
    this order and in the dtype of ``source``. Work is put on ``stream``; nothing waits for it.

    Args:
        source: (rows, columns), float32 or float64. This and the others are C-contiguous arrays on
            the device, as for :func:`graphopt.kernels.cuda.run`.
        begin: (segments + 1,), int32, from 0 to the number of rows, or of ``order``, never
            descending. Values of ``begin`` and ``order`` are not checked: they lie on the device.
        order: (count,), int32, from 0 to ``rows - 1``.
        out: (segments, columns), of the dtype of ``source``, no part of it; by default a new array.
        stream: of numba.

    Returns:
        ``out``.

    Raises:
        InputError: a shape, dtype or layout is another.
    """
    dtype = _dtype(source)
    space: dict[int, int] = {}
    places = [
        place_of(source, Operand(dtype, (0, 1)), space),
        place_of(begin, Operand("int32", (2,)), space),
    ]
    if not space[2]:
        raise InputError("segments have one pointer more than there are segments, not none")
    if order is not None:
        places.append(place_of(order, Operand("int32", (3,)), space))
    shape = (space[2] - 1, space[1])
    out, place = _output(out, dtype, shape, stream)
    name = "segment_sum" if order is None else "ordered_segment_sum"
    _launch(name, dtype, [*places, place], shape, stream)
    return out


@dataclass(frozen=True)
class RowsKernel:
    """A kernel of rows by index, as those of :mod:`graphopt.kernels.cuda.compiled`.

    Attributes:
        name: ``gather_rows``, ``segment_sum``, or ``ordered_segment_sum``, with an order.
        dtype: float32 or float64.
        width: elements read and written at once.
    """

    name: str
    dtype: str
    width: int

    @property
    def registers(self) -> int | None:
        """The most that a thread may take: any."""
        return None

    def parameters(self) -> int:
        """How many numbers it takes: addresses, rows, and chunks of a row."""
        return 6 if self.name == "ordered_segment_sum" else 5

    def function(self) -> Any:
        """The Python function, for numba to compile."""
        scope = defined(scope_of(self.dtype, [self.dtype], self.width), SOURCE)
        gathers = self.name == "gather_rows"
        source = _gather(self.width) if gathers else _sum(self.width, self.name != "segment_sum")
        return defined(scope, source)["kernel"]


def _dtype(source: Any) -> str:
    about = source.dtype if SIMULATED else source.__cuda_array_interface__["typestr"]
    dtype = str(np.dtype(about))
    if dtype not in ("float32", "float64"):
        raise InputError(f"rows are {dtype}, not float32 or float64")
    return dtype


def _output(out: Any, dtype: str, shape: tuple[int, int], stream: Any) -> tuple[Any, Any]:
    """The array to write to, and where it is."""
    if out is None:
        out = cuda.device_array(shape, np.dtype(dtype), stream=stream)
    return out, place_of(out, Operand(dtype, (0, 1)), dict(enumerate(shape)))


def _launch(name: str, dtype: str, places: list[Any], shape: tuple[int, int], stream: Any) -> None:
    """Run a kernel on arrays, the first and the last of them of rows."""
    if 0 in shape:
        return
    rows, columns = shape
    width = ACCESS // np.dtype(dtype).itemsize
    if columns % width or not (SIMULATED or is_aligned([places[0], places[-1]])):
        width = 1
    chunks = rows * (columns // width)
    blocks = min(-(-chunks // _THREADS), _BLOCKS)
    kernel = compiled(RowsKernel(name, dtype, width))
    configured(kernel, blocks, _THREADS, stream)(*places, rows, columns // width)


# Each thread has chunks of ``width`` columns, ``columns`` counts them. Adjacent threads have
# adjacent ones: a row is read by as many threads as it has chunks.


def _gather(width: int) -> str:
    return f"""\
def kernel(source, places, out, rows, columns):
    i = thread_number()
    while i < rows * columns:
        r = quotient(i, columns)
        at = index(places, r) * columns + (i - r * columns)
        {_values("v", width)} = {_load(width)}(source, at * {width})
        {_store(width)}(out, i * {width}, {_values("v", width)})
        i += thread_count()
"""


def _sum(width: int, ordered: bool) -> str:
    row = "index(order, r + {k})" if ordered else "(r + {k})"
    read = f"{_load(width)}(source, ({row} * columns + c) * {width})"
    zeros = "; ".join(f"t{k} = number(0.0)" for k in range(width))
    # Two rows are on their way at once; they are added one after the other.
    both = "; ".join(f"t{k} = t{k} + a{k}; t{k} = t{k} + b{k}" for k in range(width))
    one = "; ".join(f"t{k} = t{k} + a{k}" for k in range(width))
    return f"""\
def kernel(source, begin, {"order, " if ordered else ""}out, rows, columns):
    i = thread_number()
    while i < rows * columns:
        s = quotient(i, columns)
        c = i - s * columns
        r = index(begin, s)
        end = index(begin, s + 1)
        {zeros}
        while r + 1 < end:
            {_values("a", width)} = {read.format(k=0)}
            {_values("b", width)} = {read.format(k=1)}
            {both}
            r += 2
        if r < end:
            {_values("a", width)} = {read.format(k=0)}
            {one}
        {_store(width)}(out, i * {width}, {_values("t", width)})
        i += thread_count()
"""


def _values(name: str, width: int) -> str:
    return ", ".join(f"{name}{k}" for k in range(width))


def _load(width: int) -> str:
    return "load0" if width == 1 else "loads0"


def _store(width: int) -> str:
    return "store0" if width == 1 else "stores0"
