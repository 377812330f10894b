"""Numbers of bytes as people write them."""

from __future__ import annotations

import math
import re

from graphopt.errors import InputError

_UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9} | {
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_BY_LOWER = {name.lower(): factor for name, factor in _UNITS.items()}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", re.IGNORECASE)
#: More is a mistake.
_LARGEST = 1 << 50


def parse_size(text: str | int) -> int:
    """Bytes of a size such as ``"900MB"`` (millions), ``"1.5 GiB"`` (powers of two) or ``900000``.

    Raises:
        InputError: it is no size, or none that a machine has.
    """
    found = None if isinstance(text, bool) else _SIZE.fullmatch(str(text))
    factor = _BY_LOWER.get(found.group(2).lower()) if found else None
    if found is None or factor is None:
        raise InputError(
            f"{text!r} is no size; write bytes, or a number with one of"
            f" {', '.join(unit for unit in _UNITS if unit)}, such as '900MB'"
        )
    size = int(float(found.group(1)) * factor)
    if not 0 < size <= _LARGEST:
        raise InputError(f"{text!r} is no size that a model can have")
    return size


def print_size(nbytes: int, *, up: bool = False) -> str:
    """Bytes in the largest unit of which they are one or more; ``up``: rounded up."""
    for name in ("GB", "MB", "kB"):
        if nbytes >= _UNITS[name]:
            number = nbytes / _UNITS[name]
            digits = 2 if name == "GB" else 0 if number >= 10 else 1
            scale: float = 10.0**digits
            number = math.ceil(number * scale) / scale if up else number
            return f"{number:.{digits}f} {name}"
    return f"{nbytes} bytes"
