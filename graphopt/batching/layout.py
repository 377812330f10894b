"""How arguments and results of Blocks are nested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphopt.compat import import_mxnet

#: How nested arguments or results are laid out: 0 is an array, None is None, else (type, parts).
Layout = Any


def layout_of(nested: Any, leaves: list[Any]) -> Layout:
    """The layout of nested lists and tuples; ``leaves`` gets what is in them.

    Raises:
        TypeError: there is something else than arrays, Symbols and Nones.
    """
    mx = import_mxnet()
    if isinstance(nested, (mx.nd.NDArray, mx.sym.Symbol)):
        leaves.append(nested)
        return 0
    if nested is None:
        return None
    if type(nested) not in (list, tuple):
        raise TypeError(type(nested).__name__)
    return (type(nested), tuple(layout_of(item, leaves) for item in nested))


def regroup(layout: Layout, leaves: Iterator[Any]) -> Any:
    """The inverse of :func:`layout_of`."""
    if layout == 0:
        return next(leaves)
    if layout is None:
        return None
    return layout[0](regroup(part, leaves) for part in layout[1])
