"""Packed weights of dense layers, as the bridge's products read them."""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphopt.kernels import bridge

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

#: What the environment variable ``GRAPHOPT_AMX`` may be.
SETTINGS: Final = ("0", "bf16", "fp16")

#: What :func:`dense_means` says: where there is a matrix unit, and where two products take one
#: multiplication.
BY_UNIT: Final = "by the matrix unit"
IN_PAIRS: Final = "in pairs"
#: Rows of a layer up to which weights are read where they lie (``kFewRows`` in slim.h).
FEW_ROWS: Final = 4
#: Rows and weights of a layer from which on means that copy rows are worth it.
_LEAST_ROWS: Final = 32
_LEAST_WEIGHTS: Final = 1 << 16


def has_matrix_unit(mxnet: Any) -> bool:
    """Whether the processor has a matrix unit (AMX) that this process may use.

    Not with ``GRAPHOPT_AMX=0`` in the environment when that was first asked. With ``fp16`` it
    multiplies float16 if it can, which is tried; else bfloat16.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
    """
    found = bool(bridge.load(mxnet).graphopt_has_matrix_unit())
    _tell_of_setting(os.environ.get("GRAPHOPT_AMX", ""), has_float16=usual_factor(mxnet) > 1)
    return found


def dense_means(mxnet: Any) -> str | None:
    """By what means products of large matrices are faster here than by vectors, or ``None``.

    ``"by the matrix unit"`` (:func:`has_matrix_unit`), or ``"in pairs"`` on processors that add
    while they multiply, AMD's with AVX-512. Not that with ``GRAPHOPT_PAIRED=0`` in the environment
    when it was first asked.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
    """
    if has_matrix_unit(mxnet):
        return BY_UNIT
    return IN_PAIRS if bridge.load(mxnet).graphopt_has_dense() else None


@cache
def _tell_of_setting(wanted: str, *, has_float16: bool) -> None:
    """Warn once of what was asked for and is not done."""
    if wanted not in ("", *SETTINGS):
        text = f"GRAPHOPT_AMX={wanted} is ignored: it is none of {', '.join(SETTINGS)}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    elif wanted == "fp16" and not has_float16:
        text = (
            "GRAPHOPT_AMX=fp16 is ignored: this process has no matrix unit that multiplies float16"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def usual_factor(mxnet: Any) -> int:
    """The power of two by which sums of products of recurrences are best multiplied.

    1 but where the matrix unit multiplies float16.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
    """
    return int(bridge.load(mxnet).graphopt_usual_factor())


def is_tiled(mxnet: Any, rows: int, depth: int, units: int) -> bool:
    """Whether :func:`dense_means` are to multiply so many rows with (units, depth) weights.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
    """
    return rows >= _LEAST_ROWS and depth * units >= _LEAST_WEIGHTS and bool(dense_means(mxnet))


def packed_size(mxnet: Any, depth: int, units: int, *, tiled: bool = False) -> int:
    """How many numbers the weights of a layer are once packed, which depends on the processor.

    Args:
        mxnet: the module.
        depth: inputs of a unit.
        units: how many there are.
        tiled: for :func:`dense_means`, see :func:`is_tiled`.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
    """
    sizes = ctypes.c_int64(depth), ctypes.c_int64(units), ctypes.c_int(tiled)
    return int(bridge.load(mxnet).graphopt_packed_product(*sizes))


def packed(
    mxnet: Any, weights: Array, *, tiled: bool = False, into: Array | None = None
) -> Array | None:
    """Weights in the order in which products read them.

    Args:
        mxnet: the module.
        weights: float32, (units, depth).
        tiled: for :func:`dense_means`, see :func:`is_tiled`.
        into: where to put them; default: a new array.

    Returns:
        float32, :func:`packed_size` of them; ``None`` if they are ``tiled`` and have numbers that
        those means cannot take (infinite ones, say).

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
    """
    units, depth = weights.shape
    given = np.ascontiguousarray(weights, np.float32)
    size = packed_size(mxnet, depth, units, tiled=tiled)
    made = np.empty(size, np.float32) if into is None else into
    assert made.shape == (size,)
    is_packed = bridge.load(mxnet).graphopt_pack_product(
        ctypes.c_void_p(given.ctypes.data),
        ctypes.c_int64(depth),
        ctypes.c_int64(units),
        ctypes.c_int(tiled),
        ctypes.c_void_p(made.ctypes.data),
    )
    return made if is_packed else None
