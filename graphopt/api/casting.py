"""Parameters in the dtypes that a Symbol reads, as Modules and executors cast them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.ir.types import dtype_name

_FLOATS: Final = ("float16", "float32", "float64")


class Casts:
    """Of one Symbol, which is asked once for each set of dtypes that data have."""

    def __init__(self, symbol: Any) -> None:
        """``symbol`` is an ``mx.sym.Symbol``."""
        self._symbol = symbol
        self._known: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}

    def as_read(self, params: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters, those cast of which the Symbol says that they have another dtype.

        Floating numbers alone are cast, and no array that is to get a gradient. They take the place
        of what they were cast from; but for float16, which loses too much for calls with data of
        other dtypes, and of which there are copies.

        Args:
            params: NDArrays by name; those of the Symbol are read.
            data: those of a call, which tell the Symbol's dtypes, and are no parameters then.
        """
        given = tuple(sorted((name, _dtype(array)) for name, array in data.items()))
        if given not in self._known:
            self._known[given] = _dtypes(self._symbol, dict(given))
        found = {}
        for name, wanted in self._known[given].items():
            array = params.get(name)
            if array is None or name in data:
                continue
            dtype = _dtype(array)
            if dtype != wanted and {dtype, wanted} <= {*_FLOATS} and array.grad is None:
                array = array.astype(wanted)
                if wanted != "float16":
                    params[name] = array
            found[name] = array
        return found


def _dtypes(symbol: Any, given: Mapping[str, str]) -> dict[str, str]:
    """The dtypes of inputs that follow from those of some; none where nothing or too much does."""
    mx = import_mxnet()
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    try:
        arguments, _, states = symbol.infer_type_partial(**given)
    except mx.MXNetError:  # they contradict
        return dict.fromkeys(names, "")
    types = [*(arguments or ()), *(states or ())] or [None] * len(names)
    return {
        name: "" if type_ is None else np.dtype(type_).name
        for name, type_ in zip(names, types, strict=True)
    }


def _dtype(array: Any) -> str:
    return dtype_name(array.dtype)
