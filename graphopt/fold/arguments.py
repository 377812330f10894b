"""Arguments of recorded calls: how they are nested, and which of them are the same."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.fold.nodes import Node

_NDArray: Any = import_mxnet().nd.NDArray


def is_array(leaf: Any) -> bool:
    """Whether it is an array, or stands for one."""
    return isinstance(leaf, (Node, _NDArray))


def flatten(nested: Any, leaves: list[Any]) -> Any:
    """How nodes and arrays are nested; lists and tuples without any are leaves themselves."""
    kind = type(nested)
    if kind is not Node and kind is not _NDArray and isinstance(nested, (list, tuple)):
        start = len(leaves)
        layout = tuple([flatten(item, leaves) for item in nested])
        if not nested or any(map(is_array, leaves[start:])):
            return layout
        del leaves[start:]
    leaves.append(nested)
    return 0


def regrouped(layout: Any, leaves: Iterator[Any]) -> Any:
    """The inverse of :func:`flatten`, with lists."""
    if layout == 0:
        return next(leaves)
    return [regrouped(part, leaves) for part in layout]


def key_of(item: Any) -> Any:
    """Equal for arguments that are the same; arrays and unhashable objects only for themselves."""
    kind = type(item)
    if kind is Node:
        return item
    if isinstance(item, _NDArray):
        return id(item)
    if isinstance(item, (list, tuple)):
        return (kind, *map(key_of, item))
    if isinstance(item, numbers.Number):
        return kind, repr(item)  # 0 and -0.0, or 1 and True, are equal
    try:
        hash(item)
    except TypeError:
        return kind, id(item)
    return kind, item
