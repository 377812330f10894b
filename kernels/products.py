"""Packed weights of dense layers, as the bridge's products read them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.kernels import bridge

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]


def packed_size(mxnet: Any, depth: int, units: int) -> int:
    """How many numbers the weights of a layer are once packed, which depends on the processor.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
    """
    library = bridge.load(mxnet)
    return int(library.graphopt_packed_product(ctypes.c_int64(depth), ctypes.c_int64(units)))


def packed(mxnet: Any, weights: Array) -> Array:
    """Weights in the order in which products read them.

    Args:
        mxnet: the module.
        weights: float32, (units, depth).

    Returns:
        float32, :func:`packed_size` of them.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
    """
    units, depth = weights.shape
    given = np.ascontiguousarray(weights, np.float32)
    made = np.empty(packed_size(mxnet, depth, units), np.float32)
    bridge.load(mxnet).graphopt_pack_product(
        ctypes.c_void_p(given.ctypes.data),
        ctypes.c_int64(depth),
        ctypes.c_int64(units),
        ctypes.c_void_p(made.ctypes.data),
    )
    return made
