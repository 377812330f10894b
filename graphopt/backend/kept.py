"""Packed parameters, shared by all graphs that read the same."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from graphopt.backend.arrays import array_of
from graphopt.compat import import_mxnet
from graphopt.kernels.bridge.written import digest_of


class Kept:
    """An array that lives as long as somebody has this."""

    def __init__(self, array: Any) -> None:
        """Of an NDArray."""
        self.array = array


#: A net has a graph for each shape of its inputs, and most read its parameters packed alike.
_KEPT: Final[WeakValueDictionary[tuple[int, tuple[int, ...], str], Kept]] = WeakValueDictionary()


def kept(values: npt.NDArray[np.float32], ctx: Any) -> Kept:
    """Such an array at ``ctx``, one that is there already if there is one."""
    key = digest_of(import_mxnet(), values), values.shape, str(ctx)
    found = _KEPT.get(key)
    # A digest can be that of other bits, too. As whole numbers, since NaNs do not equal themselves.
    if found is not None and np.array_equal(_bits(found.array.asnumpy()), _bits(values)):
        return found
    made = Kept(array_of(values, ctx))
    _KEPT[key] = made
    return made


def _bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return values.view(np.uint32)
