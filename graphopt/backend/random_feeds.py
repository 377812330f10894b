"""Random but plausible values for the inputs of a graph, for checks and measurements."""

from __future__ import annotations

import math
import sys
import zlib
from typing import Any, cast

import numpy as np

from graphopt.errors import InputError
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, DATA, Node


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """One array per input that is read, by name; depends on seed, names and types only.

    Weights are scaled by their fan-in so that deep networks stay finite; scales and variances are
    positive. Integer inputs are small non-negative numbers.

    Raises:
        InputError: an input that is read has no static type.
    """
    return {node.name: draw(node, seed) for node in _read(graph)}


#: Numbers that an array of float64 can have at most; numpy's error for more is none of memory.
_MOST = sys.maxsize // 8

#: Numbers that are drawn for an input that is only timed with; the rest are these again.
_DRAWN = 10_007


def quick_feeds(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    """As :func:`random_feeds`, for timing: values come again, as drawing millions takes longer.

    Raises:
        InputError: an input that is read has no static type.
    """
    return {node.name: _repeated(node) for node in _read(graph)}


def _read(graph: Graph) -> list[Node]:
    return [n for n in graph.inputs if graph.node_users(n.id) or graph.is_output(n.out())]


def _repeated(node: Node) -> np.ndarray[Any, Any]:
    if (node.type.size or 0) <= _DRAWN:
        return draw(node)
    some = draw(node.but(types=(node.type.with_shape((_DRAWN,)),)))
    return np.resize(some, cast("tuple[int, ...]", node.type.shape))


def draw(node: Node, seed: int = 0) -> np.ndarray[Any, Any]:
    """A value for one input node."""
    if not node.type.is_static:
        raise InputError(
            f"input {node.name!r} has type {node.type}: give its shape, for example"
            f" shapes={{{node.name!r}: (1, 3, 224, 224)}} or --shape {node.name}:1,3,224,224"
        )
    assert node.type.shape is not None
    shape = tuple(extent or 0 for extent in node.type.shape)
    if math.prod(shape) > _MOST:
        raise MemoryError(f"input {node.name!r} has type {node.type}")
    rng = np.random.default_rng([seed, zlib.crc32(node.name.encode())])
    dtype = np.dtype("float32" if node.type.dtype == "bfloat16" else node.type.dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2 if dtype.kind == "b" else 8, size=shape).astype(dtype)
    return _floats(node, shape, rng).astype(dtype)


def _floats(node: Node, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    name = node.name.lower()
    if node.op == DATA:
        return rng.standard_normal(shape)
    if name.endswith(("var", "gamma")):
        return rng.uniform(0.5, 1.5, size=shape)
    if node.op == AUX or len(shape) < 2:
        return 0.1 * rng.standard_normal(shape)
    return rng.standard_normal(shape) * math.sqrt(1.5 / max(1, math.prod(shape[1:])))
