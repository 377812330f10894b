"""Integers that gradients are asked of, which MXNet hands through casts, truncated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.kernels.bridge.history import has_history


def any_learns(arrays: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether autograd knows of some of the arrays with those names; some may not be there."""
    mx = import_mxnet()
    return any(has_history(mx, arrays[name]) for name in names if name in arrays)
