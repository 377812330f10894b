"""Rows of arrays on an NVIDIA GPU: gathered by an index, and added up by segments.

They are what message passing over trees does between kernels, and each is the other's gradient::

    rows = gather_rows(source, index)
    by_source = segment_sum(head, *inverse(index, len(source)))

    sums = segment_sum(source, begin, order)
    by_source = gather_rows(head, owners(begin, order))

Every sum has one thread, which adds in the order of rows: no atomics, results repeat bit by bit.
That suits many short segments; one of most rows is slow. Threads of a warp lie along columns, so
that they read and write adjacent elements. As :mod:`graphopt.kernels.cuda`, with
``NUMBA_ENABLE_CUDASIM=1`` numba interprets the kernels on numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, types

from graphopt.errors import GraphoptError, InputError
from graphopt.kernels.cuda import SIMULATED, place_of
from graphopt.kernels.spec import Operand

_WARP = 32
#: Threads of a block, and blocks along rows and along columns at most.
_THREADS = 64 if SIMULATED else 256
_BLOCKS = (2, 2) if SIMULATED else (1 << 20, 1 << 10)

_NUMBA = {"float32": types.float32, "float64": types.float64}

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
    place_of(source, Operand(dtype, (0, 1)), space)
    place_of(index, Operand("int32", (2,)), space)
    out = _output(out, dtype, space[2], space[1], stream)
    _launch("gather_rows", dtype, [source, index, out], out.shape, stream)
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
    place_of(source, Operand(dtype, (0, 1)), space)
    place_of(begin, Operand("int32", (2,)), space)
    if not space[2]:
        raise InputError("segments have one pointer more than there are segments, not none")
    if order is not None:
        place_of(order, Operand("int32", (3,)), space)
    out = _output(out, dtype, space[2] - 1, space[1], stream)
    arrays = [source, begin, out] if order is None else [source, begin, order, out]
    name = "segment_sum" if order is None else "ordered_segment_sum"
    _launch(name, dtype, arrays, out.shape, stream)
    return out


def compile_ptx(name: str, dtype: str, compute_capability: tuple[int, int] = (8, 0)) -> str:
    """The PTX of a kernel, without a GPU.

    Args:
        name: ``gather_rows``, ``segment_sum``, or ``ordered_segment_sum``, with an order.
        dtype: float32 or float64.
        compute_capability: what to compile for.

    Raises:
        GraphoptError: the kernel cannot be compiled.
    """
    function = _FUNCTIONS[name](_NUMBA[dtype])
    try:
        text, _ = cuda.compile_ptx(function, _arguments(name, dtype), cc=compute_capability)
    except Exception as error:  # numba, NVVM and the search for it have no common base
        raise GraphoptError(f"numba does not compile {name} of {dtype}: {error}") from error
    return str(text)


def _dtype(source: Any) -> str:
    about = source.dtype if SIMULATED else source.__cuda_array_interface__["typestr"]
    dtype = str(np.dtype(about))
    if dtype not in _NUMBA:
        raise InputError(f"rows are {dtype}, not float32 or float64")
    return dtype


def _output(out: Any, dtype: str, rows: int, columns: int, stream: Any) -> Any:
    if out is None:
        return cuda.device_array((rows, columns), np.dtype(dtype), stream=stream)
    place_of(out, Operand(dtype, (0, 1)), {0: rows, 1: columns})
    return out


def _launch(name: str, dtype: str, arrays: list[Any], shape: tuple[int, int], stream: Any) -> None:
    if 0 in shape:
        return
    rows, columns = shape
    across = min(_THREADS, -(-columns // _WARP) * _WARP)
    down = _THREADS // across
    blocks = (min(-(-rows // down), _BLOCKS[0]), min(-(-columns // across), _BLOCKS[1]))
    _compiled(name, dtype)[blocks, (across, down), stream](*arrays)


@cache
def _compiled(name: str, dtype: str) -> Any:
    if SIMULATED:
        return cuda.jit(_FUNCTIONS[name](np.dtype(dtype).type))
    return cuda.jit(_arguments(name, dtype))(_FUNCTIONS[name](_NUMBA[dtype]))


def _arguments(name: str, dtype: str) -> Any:
    rows, numbers = _NUMBA[dtype][:, ::1], types.int32[::1]
    count = 2 if name == "ordered_segment_sum" else 1
    return types.void(rows, *[numbers] * count, rows)


# Rows of threads walk rows of the output, threads of a row its columns, in strides of the grid. Not
# with range: numba would count the rounds of each loop before it, by 64-bit divisions.


def _gather_rows(_number: Any) -> Callable[..., None]:
    def kernel(source: Any, index: Any, out: Any) -> None:
        r = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        while r < out.shape[0]:
            at = index[r]
            c = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
            while c < out.shape[1]:
                out[r, c] = source[at, c]
                c += cuda.gridDim.y * cuda.blockDim.x
            r += cuda.gridDim.x * cuda.blockDim.y

    return kernel


def _segment_sum(number: Any) -> Callable[..., None]:
    def kernel(source: Any, begin: Any, out: Any) -> None:
        s = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        while s < out.shape[0]:
            end = begin[s + 1]
            c = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
            while c < out.shape[1]:
                total = number(0)
                r = begin[s]
                while r < end:
                    total += source[r, c]
                    r += 1
                out[s, c] = total
                c += cuda.gridDim.y * cuda.blockDim.x
            s += cuda.gridDim.x * cuda.blockDim.y

    return kernel


def _ordered_segment_sum(number: Any) -> Callable[..., None]:
    def kernel(source: Any, begin: Any, order: Any, out: Any) -> None:
        s = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
        while s < out.shape[0]:
            end = begin[s + 1]
            c = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
            while c < out.shape[1]:
                total = number(0)
                k = begin[s]
                while k < end:
                    total += source[order[k], c]
                    k += 1
                out[s, c] = total
                c += cuda.gridDim.y * cuda.blockDim.x
            s += cuda.gridDim.x * cuda.blockDim.y

    return kernel


_FUNCTIONS = {
    "gather_rows": _gather_rows,
    "ordered_segment_sum": _ordered_segment_sum,
    "segment_sum": _segment_sum,
}
