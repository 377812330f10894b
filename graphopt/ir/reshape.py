"""What the codes of MXNet's Reshape make of a shape."""

from __future__ import annotations

import math
from collections.abc import Sequence


def reshaped(shape: Sequence[int], spec: Sequence[int], reverse: bool = False) -> tuple[int, ...]:
    """The shape that MXNet's Reshape makes of `shape`.

    In `spec`, 0 copies a dimension, -1 is inferred, -2 copies all that remain, -3 joins two, and -4
    splits one into the two numbers that follow it, of which one may be -1. With `reverse` both are
    read from the right.

    Raises:
        ValueError: the codes do not fit the shape, or the sizes differ, which MXNet lets pass.
    """
    if reverse:
        # MXNet reverses the codes one by one: here the factors of a split stand before its -4.
        return reshaped(shape[::-1], spec[::-1])[::-1]
    source, codes, out = list(shape), list(spec), list[int]()
    inferred: int | None = None
    try:
        while codes:
            code = codes.pop(0)
            if code == -2:
                out += source
                source = []
            elif code == -3:
                out.append(source.pop(0) * source.pop(0))
            elif code == -4:
                out += _split(source.pop(0), codes.pop(0), codes.pop(0))
            elif code == 0:
                out.append(source.pop(0))
            elif code == -1:
                if inferred is not None:
                    raise ValueError("more than one dimension is -1")
                inferred = len(out)
                out.append(1)
                source = source[1:]
            else:
                out.append(code)
                source = source[1:]
    except (IndexError, ValueError) as error:
        raise ValueError(f"A reshape of {tuple(shape)} to {tuple(spec)} fails: {error}.") from error
    if inferred is not None:
        # An empty array makes the quotient 0 / 0, which is 0.
        out[inferred] = math.prod(shape) // max(math.prod(out), 1)
    if math.prod(out) != math.prod(shape):
        raise ValueError(f"An array of shape {tuple(shape)} has no shape {tuple(out)}.")
    return tuple(out)


def _split(size: int, first: int, second: int) -> list[int]:
    """The two factors of a dimension, one of which may be -1."""
    if first == -1:
        first = size // second
    if second == -1:
        second = size // first
    if first * second != size:
        raise ValueError(f"{first} times {second} is not {size}")
    return [first, second]
