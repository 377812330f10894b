"""Data that JSON can write."""

from __future__ import annotations

import math
from typing import Any


def finite(data: Any) -> Any:
    """The data with null for every float that JSON has no word for."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return data
