"""Between arrays of ``mx.np`` and those of ``mx.nd``, and symbols of both.

``npx.set_np()`` has Blocks get the former; graphopt's own operators are written for the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphopt.compat import import_mxnet


def legacy(nested: Any) -> Any:
    """The same arrays or symbols as those of ``mx.nd``, also inside lists, tuples and dicts."""
    return _mapped(nested, "as_nd_ndarray")


def current(nested: Any) -> Any:
    """The same as those of ``mx.np`` where ``npx.set_np()`` holds."""
    return _mapped(nested, "as_np_ndarray") if import_mxnet().util.is_np_array() else nested


def with_legacy(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns that is written for ``mx.nd``."""
    if not import_mxnet().util.is_np_array():
        return function(*args, **kwargs)
    return current(function(*legacy(args), **legacy(kwargs)))


def _mapped(nested: Any, method: str) -> Any:
    if isinstance(nested, (list, tuple)):
        return type(nested)(_mapped(item, method) for item in nested)
    if isinstance(nested, Mapping):
        return {name: _mapped(item, method) for name, item in nested.items()}
    return getattr(nested, method, lambda: nested)()
