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


def codes_for(shape: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Codes that make the wanted shape of a shape, and what corresponds to it of other sizes.

    Axes in front that are equal are copied, and so are those at the end. What is between is one
    axis that is split into two, two that are joined, or an axis of 1, where it can be; the first
    part of an axis that is split follows from the second. Otherwise it is the wanted shape itself.
    """
    front = _common(shape, wanted)
    end = _common(shape[front:][::-1], wanted[front:][::-1])
    before, after = shape[front : len(shape) - end], wanted[front : len(wanted) - end]
    rest = (-2,) if end else ()
    found: tuple[int, ...] = ()
    if len(before) == 1 and len(after) == 2:
        found = (-4, -1, after[1], *rest)
    elif len(before) == 2 and len(after) == 1:
        found = (-3, *rest)
    elif not before and tuple(after) == (1,):  # a number takes the place of an axis
        found = (-4, 1, -1, *rest) if end else (1,)
    elif len(after) == 1 and not end:
        found = (-1,)
    elif before or after:
        return tuple(wanted)
    else:
        found = rest
    return ((0,) * front) + found


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many axes in front are equal."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


def _split(size: int, first: int, second: int) -> list[int]:
    """The two factors of a dimension, one of which may be -1."""
    if first == -1:
        first = size // second
    if second == -1:
        second = size // first
    if first * second != size:
        raise ValueError(f"{first} times {second} is not {size}")
    return [first, second]
