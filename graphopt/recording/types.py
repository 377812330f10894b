"""Types of arrays, as keys of programs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

#: Shape and the dtype's name.
Type = tuple[tuple[int, ...], str]


@cache
def dtype_name(dtype: Any) -> str:
    """A dtype by its name, from what MXNet's arrays have: a numpy type."""
    return np.dtype(dtype).name
