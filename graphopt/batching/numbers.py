"""Numbers that differ from sample to sample: once there are many, they are rows as arguments are.

A number is an attribute of its operator, so that calls with different ones never join a group, and
each has a kernel that is compiled for it. That is best for the few numbers that a net's code has,
but not for those that come from data, of which there is a new one in every sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.batching.operators import handle
from graphopt.batching.special import kind_of_any

if TYPE_CHECKING:
    from graphopt.batching.library import Entry, Library
    from graphopt.batching.recorder import Recorder

#: As many different numbers as an operator may be called with on arrays of one type.
MAX_NUMBERS = 8
#: The operator on two arrays, and whether the number comes first.
_PAIRS = {
    "_plus_scalar": ("broadcast_add", False),
    "_minus_scalar": ("broadcast_sub", False),
    "_rminus_scalar": ("broadcast_sub", True),
    "_mul_scalar": ("broadcast_mul", False),
    "_div_scalar": ("broadcast_div", False),
    "_rdiv_scalar": ("broadcast_div", True),
    "_power_scalar": ("broadcast_power", False),
    "_rpower_scalar": ("broadcast_power", True),
    "_maximum_scalar": ("broadcast_maximum", False),
    "_minimum_scalar": ("broadcast_minimum", False),
}


def number_as_row(
    library: Library, recorder: Recorder, op: str, args: Sequence[Any], attrs: Mapping[str, Any]
) -> Entry | None:
    """The entry of a call with one number too many, which is not to be kept; None for others."""
    if op not in _PAIRS or list(attrs) != ["scalar"]:
        return None
    of, rank = kind_of_any(args[0]), len(args[0].shape)
    if np.dtype(of.dtype).kind != "f":  # others convert the number in their own ways
        return None
    key = (op, of, recorder.state)
    library.numbers[key] += 1
    if library.numbers[key] <= MAX_NUMBERS:
        return None
    value, (pair, is_first) = float(attrs["scalar"]), _PAIRS[op]
    operator = handle(pair)

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        number = recorder.number(value, of, rank)
        given = (number, args[0]) if is_first else (args[0], number)
        return recorder.call(operator, given, (), ())

    return entry
