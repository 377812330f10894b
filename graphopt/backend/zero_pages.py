"""Memory of gradients that nobody has computed, given back to the kernel.

MXNet gives each trainable parameter an array for its gradient and fills it with zeros, so that a
process which only infers holds its parameters twice. What the kernel is given back it hands out
again, as zeros, where somebody reads or writes it: nobody can tell the difference.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphopt.backend.arrays import bytes_of
from graphopt.backend.holding import in_place
from graphopt.compat import import_mxnet
from graphopt.kernels.bridge.versions import Versions, fit

_MADV_DONTNEED: Final = 4
#: Of smaller arrays little more than the ends of pages would be left.
_LEAST_BYTES: Final = 64 << 10
#: Compared at a time, so that what is not zero is found soon.
_PART_BYTES: Final = 1 << 20


def give_back_zeros(arrays: Sequence[Any]) -> int:
    """Give back the memory of arrays that MXNet has made of zeros and nobody wrote to since.

    Args:
        arrays: dense NDArrays that MXNet has allocated, of any shapes and dtypes. Others are left
            alone where they are on a GPU.

    Returns:
        How many bytes that was.
    """
    mx = import_mxnet()
    large = [a for a in arrays if a.context.device_type == "cpu" and bytes_of(a) >= _LEAST_BYTES]
    if not (large and fit(mx) and _advise() is not None):
        return 0
    writes = Versions(mx, large).read()
    fresh = [array for array, count in zip(large, writes, strict=True) if count <= 1]
    # Whoever reads them meanwhile reads zeros either way.
    return in_place(fresh, lambda found: sum(map(_give_back, found))) if fresh else 0


def _give_back(numbers: npt.NDArray[Any] | None) -> int:
    if numbers is None:  # not where it can be read
        return 0
    raw = numbers.reshape(-1).view(np.uint8)
    if any(raw[at : at + _PART_BYTES].any() for at in range(0, raw.size, _PART_BYTES)):
        return 0
    begin = -(-raw.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (raw.ctypes.data + raw.size) // mmap.PAGESIZE * mmap.PAGESIZE
    advise = _advise()
    if advise is None or advise(begin, end - begin, _MADV_DONTNEED):
        return 0  # memory of a kind that is not given back, as of huge pages
    return end - begin


@cache
def _advise() -> Any:
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None  # another C library
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise
