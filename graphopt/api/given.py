"""What users give to models: NDArrays, or what numpy makes arrays of."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.backend.fitting import as_parameter
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.ir.types import DTYPES, dtype_name


def parameter_of(name: str, value: Any) -> Any:
    """A dense NDArray; of numpy's arrays in their dtype, which is cast to what the Symbol reads."""
    if not isinstance(value, import_mxnet().nd.NDArray):
        value = _numbers(f"parameter {name!r}", value)
    return as_parameter(name, value)


def input_of(name: str, value: Any) -> Any:
    """An NDArray; of numpy's arrays in their dtype, but in float32 of its usual float64."""
    mx = import_mxnet()
    if isinstance(value, mx.nd.NDArray):
        return value
    array = _numbers(f"input {name!r}", value)
    return mx.nd.array(array, dtype="float32" if array.dtype == np.float64 else array.dtype)


def _numbers(what: str, value: Any) -> np.ndarray[Any, Any]:
    """What numpy makes of a value; raises InputError where MXNet has no such arrays."""
    try:
        array = np.asarray(value)
    except ValueError:  # of a list of NDArrays, or one whose items differ in length
        array = np.empty(0, object)
    if dtype_name(array.dtype) not in DTYPES:
        kind = type(value).__name__ + (f" of {array.dtype}" if value is array else "")
        raise InputError(f"{what} is a {kind}: give one NDArray, or what numpy makes one")
    return array
