"""Gradients scaled to a bound of their norm."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError
from graphopt.ir.types import dtype_name
from graphopt.kernels import bridge
from graphopt.kernels.library import prepare
from graphopt.kernels.spec import Operand
from graphopt.kernels.spec_builder import Builder
from graphopt.optimizers.updating import DTYPES, why_no_kernels
from graphopt.recording.active import flush_recorded


def clip_global_norm(
    arrays: Sequence[Any], max_norm: float | Any, check_isfinite: bool = True
) -> float | Any:
    """Scale NDArrays so that their norm, of all together, is at most ``max_norm``.

    What ``mx.gluon.utils.clip_global_norm`` does, which it takes the place of, in one operation
    that reads the arrays once, and writes them only where they are too large: MXNet multiplies them
    number by number in any case. Of float32 or float64; arrays that are sparse, on a GPU or of
    other dtypes are left to MXNet, which refuses some of them.

    Source: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks,
    2013.

    Args:
        arrays: NDArrays of any shapes, such as the gradients of all parameters; written in place.
        max_norm: the bound; one in an NDArray is waited for.
        check_isfinite: wait for the norm, and warn where it is infinite or no number.

    Returns:
        The norm before, a float; an NDArray of shape (1,) without ``check_isfinite``.

    Raises:
        InputError: there are no arrays, or something else is among them, or the bound is no number.
        GraphoptError: MXNet refuses.
    """
    mx = import_mxnet()
    arrays = list(arrays)
    if not arrays or not all(isinstance(array, mx.nd.NDArray) for array in arrays):
        raise InputError("arrays: give NDArrays, one at least")
    flush_recorded()
    bound = _number(max_norm)
    if not _is_ours(arrays):
        return mx.gluon.utils.clip_global_norm(arrays, bound, check_isfinite)
    total = _clipped(arrays, bound)
    if not check_isfinite:
        return total
    norm = float(total.asscalar())
    if not np.isfinite(norm):
        text = f"the norm of the arrays is {norm}: what becomes of them is of no use"
        warnings.warn(text, stacklevel=2)
    return norm


def _number(max_norm: Any) -> float:
    is_array = isinstance(max_norm, import_mxnet().nd.NDArray)
    try:
        bound = max_norm.asnumpy() if is_array else max_norm
        return float(bound.item() if isinstance(bound, np.ndarray) else bound)
    except (TypeError, ValueError):
        kind = f"an array of shape {max_norm.shape}" if is_array else repr(max_norm)
        raise InputError(f"max_norm: {kind} is no bound: give a number") from None


def _is_ours(arrays: Sequence[Any]) -> bool:
    first = arrays[0]
    return (
        dtype_name(first.dtype) in DTYPES
        and first.context.device_type == "cpu"
        and all(a.stype == "default" and a.size for a in arrays)
        and all(a.dtype == first.dtype and a.context == first.context for a in arrays)
        and why_no_kernels() is None
    )


def _clipped(arrays: Sequence[Any], most: float) -> Any:
    """The norm, once MXNet's engine has it."""
    mx = import_mxnet()
    library = bridge.load(mx)
    library.graphopt_clip.argtypes = [
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64),
        *(ctypes.c_void_p, ctypes.c_double),
    ]
    specs = _specs(dtype_name(arrays[0].dtype))
    total = mx.nd.empty((1,), arrays[0].context, arrays[0].dtype)
    handles = (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))
    if library.graphopt_clip(*specs, handles, len(arrays), total.handle, most):
        raise GraphoptError(library.graphopt_error().decode())
    return total


@lru_cache(maxsize=4)
def _specs(dtype: str) -> tuple[bytes, bytes]:
    """Kernels: the sum of squares of a row, and the product of an array with a number."""
    row, number = Operand(dtype, (0,)), Operand(dtype, ())
    emit = Builder(dtype, 1, 1)
    squares = emit.build([(emit("reduce_sum", emit("square", emit.input(row))), number)])
    emit = Builder(dtype, 1, 0)
    scaled = emit.build([(emit("mul", emit.input(row), emit.input(Operand(dtype, (None,)))), row)])
    texts = str(squares), str(scaled)
    prepare(texts, gradients=False)
    return texts[0].encode(), texts[1].encode()
