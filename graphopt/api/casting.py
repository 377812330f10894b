"""Parameters in the dtypes that a Symbol reads, as Modules and executors cast them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.ir.types import dtype_name

_FLOATS: Final = ("float16", "float32", "float64")


def as_read(symbol: Any, params: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, those cast of which the Symbol says that they have another dtype.

    Floating numbers alone are cast, and no array that is to get a gradient.

    Args:
        symbol: an ``mx.sym.Symbol``.
        params: NDArrays by name.
        data: those of a call, which tell the Symbol's dtypes.
    """
    kept = dict(params)
    given = {name: _dtype(array) for name, array in data.items()}
    found = {name: _dtype(array) for name, array in params.items() if array.grad is None}
    if len({*given.values(), *found.values()}.intersection(_FLOATS)) < 2:
        return kept
    read = _dtypes(symbol, given)
    for name, dtype in found.items():
        if dtype in _FLOATS and read.get(name, dtype) in _FLOATS and read.get(name, dtype) != dtype:
            kept[name] = params[name].astype(read[name])
    return kept


def _dtypes(symbol: Any, given: Mapping[str, str]) -> dict[str, str]:
    """The dtypes of inputs that follow from those of some; none where these contradict."""
    mx = import_mxnet()
    try:
        arguments, _, states = symbol.infer_type_partial(**given)
    except mx.MXNetError:
        return {}
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    types = zip(names, [*(arguments or ()), *(states or ())], strict=False)
    return {name: np.dtype(type_).name for name, type_ in types if type_ is not None}


def _dtype(array: Any) -> str:
    return dtype_name(array.dtype)
