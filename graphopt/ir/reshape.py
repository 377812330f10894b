"""What the codes of MXNet's Reshape make of a shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence


def reshaped(shape: Sequence[int], spec: Sequence[int], reverse: bool = False) -> tuple[int, ...]:
    """The shape that MXNet's Reshape makes of `shape`.

    In `spec`, 0 copies a dimension, -1 is inferred, -2 copies all that remain, -3 joins two, and -4
    splits one into the two numbers that follow it, of which one may be -1. With `reverse` both are
    read from the right.

    Raises:
        ValueError: the codes do not fit the shape, or the sizes differ, which MXNet lets pass; or
            MXNet would infer another dimension than the one of -1, for which it takes the place of
            the code: behind -4, and behind a -2 that does not stand for one dimension.
    """
    if reverse:
        # MXNet reverses the codes one by one: here the factors of a split stand before its -4.
        return reshaped(shape[::-1], spec[::-1])[::-1]
    source, codes, out = list(shape), list(spec), list[int]()
    inferred: int | None = None
    try:
        while codes:
            place, code = len(spec) - len(codes), codes.pop(0)
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
                if place != len(out):
                    raise ValueError("MXNet infers another dimension than that of -1")
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

    Axes are copied, two joined, or one is split, of which the first part follows from the second.
    Where that does not make it, the first extent is copied or inferred and the others are written
    out, as is the last one behind a split, where MXNet does not infer it.
    """
    found = _codes(tuple(shape), tuple(wanted))
    if found is not None or not wanted:
        return found or ()
    return (0 if tuple(shape[:1]) == tuple(wanted[:1]) else -1, *wanted[1:])


def _codes(
    shape: tuple[int, ...], wanted: tuple[int, ...], *, is_split: bool = False
) -> tuple[int, ...] | None:
    if not wanted:
        return None if shape else ()
    if not shape:
        return wanted if set(wanted) == {1} else None
    for code, read, made in _first_codes(shape, wanted):
        rest = _codes(shape[read:], wanted[made:], is_split=is_split or code[0] == -4)
        if rest is not None:
            return code + rest
    if len(wanted) > 1 or math.prod(shape) != wanted[0]:
        return None
    return wanted if is_split else (-1,)


def _first_codes(
    shape: tuple[int, ...], wanted: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Codes that may come first, and how many axes they read and make."""
    if shape[0] == wanted[0]:
        yield (0,), 1, 1
    if math.prod(shape[:2]) == wanted[0] and len(shape) > 1:
        yield (-3,), 2, 1
    if math.prod(wanted[:2]) == shape[0] and len(wanted) > 1:
        yield ((-4, 1, -1) if wanted[0] == 1 else (-4, -1, wanted[1])), 1, 2


def _split(size: int, first: int, second: int) -> list[int]:
    """The two factors of a dimension, one of which may be -1."""
    if first == -1:
        first = size // second
    if second == -1:
        second = size // first
    if first * second != size:
        raise ValueError(f"{first} times {second} is not {size}")
    return [first, second]
