"""What rounding is meant to do."""

from __future__ import annotations

import math


def cancels(*terms: float) -> bool:
    """Whether adding the terms one by one rounds away bits that adding their sum would keep.

    ``(x + 1e8) - 1e8`` is how programs round x; it must not become x.
    """
    if not any(terms) or not all(map(math.isfinite, terms)):
        return False
    return abs(sum(terms)) < 0.5 * max(map(abs, terms))
