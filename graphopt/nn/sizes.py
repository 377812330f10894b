"""The extents of the data of calls, and what two of them say of a third."""

from __future__ import annotations

import math
from itertools import chain
from typing import Final

from graphopt.nn.signatures import Signature

#: The extents of all axes of all arrays.
Sizes = tuple[int, ...]

#: Sizes are far from each other if an extent is more than so many times as large.
_FAR: Final = 2.0


def sizes_of(signature: Signature) -> Sizes:
    """Of all its arrays."""
    return tuple(chain.from_iterable(array[0] for array in signature[3]))


def types_of(signature: Signature) -> tuple[object, ...]:
    """What a signature is but for its sizes."""
    return (*signature[:3], *((len(array[0]), *array[1:]) for array in signature[3]))


def covers(first: Sizes, second: Sizes, new: Sizes) -> bool:
    """Whether graphs that are alike for two sizes are so for a third one, as far as sizes tell.

    Extents that the two have in common have to be that; those that are equal in each of the two
    have to be equal, as it may matter that they are. What is 1 in neither may not be, since MXNet
    broadcasts along that.
    """
    found: dict[tuple[int, int], int] = {}
    for a, b, extent in zip(first, second, new, strict=True):
        if extent < 1 or (extent == 1 and 1 not in (a, b)):
            return False
        if found.setdefault((a, b), a if a == b else extent) != extent:
            return False
    return True


def distance(first: Sizes, second: Sizes) -> float:
    """The largest factor between two extents; infinite if one of them is 0."""
    pairs = [sorted(pair) for pair in zip(first, second, strict=True)]
    return max((large / small if small else math.inf for small, large in pairs), default=1.0)


def are_near(first: Sizes, second: Sizes) -> bool:
    """Whether what is fast for one will be for the other."""
    return distance(first, second) <= _FAR
