"""Adds typed nodes that depend on parameters only, which a frozen graph computes once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from graphopt.ir.graph import Graph
from graphopt.ir.node import NodeId, Value
from graphopt.ir.types import TensorType

Extents = tuple[int, ...]

#: A number for all channels, a vector of one number per channel, or nothing.
Factor = float | Value | None

FLOATS = ("float16", "float32", "float64")


class Refused(Exception):  # noqa: N818 - no error: the reason why a rewrite does not apply
    """A rewrite does not apply; the message says why, as the second half of a sentence."""


def check_operand(graph: Graph, value: Value, frozen: Collection[NodeId]) -> None:
    """Check that a weight, bias or statistic can be computed with before the graph runs.

    Raises:
        Refused: it depends on data, is sparse, or its type is unknown or no float.
    """
    node, type_ = graph[value.node], graph.type_of(value)
    if value.node not in frozen:
        raise Refused(f"{node.name!r} depends on data")
    if str(node.attrs.get("__storage_type__", 0)) not in ("0", "default"):
        raise Refused(f"{node.name!r} is sparse")
    if not type_.is_static or type_.dtype not in FLOATS:
        raise Refused(f"{node.name!r} has type {type_}")


@dataclass(frozen=True)
class FrozenBuilder:
    """Builds one folded value; ``base`` begins the names, ``frozen`` grows with every node."""

    graph: Graph
    frozen: set[NodeId]
    base: str
    origin: tuple[str, ...]

    def shape(self, value: Value) -> Extents:
        """The shape of a value.

        Raises:
            Refused: it is not known.
        """
        shape = self.graph.type_of(value).shape
        if shape is None or None in shape:
            name = self.graph[value.node].name
            raise Refused(f"the shape of {name!r} is not known: give the shapes of the data inputs")
        return tuple(extent for extent in shape if extent is not None)

    def dtype(self, value: Value) -> str:
        """The dtype of a value, which is a float.

        Raises:
            Refused: it is unknown, or no float.
        """
        dtype = self.graph.type_of(value).dtype
        if dtype not in FLOATS:
            raise Refused(f"{self.graph[value.node].name!r} has dtype {dtype or 'unknown'}")
        return dtype

    def call(
        self, op: str, inputs: Sequence[Value], shape: Extents, name: str, /, **attrs: object
    ) -> Value:
        """Any operator whose output has the dtype of its first input."""
        dtype = str(attrs["dtype"]) if "dtype" in attrs else self.dtype(inputs[0])
        label = self.graph.unique_name(f"{self.base}_{name}")
        type_ = TensorType(dtype, shape)
        node = self.graph.add(op, inputs, attrs, (type_,), label, origin=self.origin)
        self.frozen.add(node.id)
        return node.out()

    def reshape(self, value: Value, shape: Extents, name: str = "shaped") -> Value:
        """The same elements under another shape; the value itself if it has that shape."""
        if self.shape(value) == shape:
            return value
        return self.call("Reshape", [value], shape, name, shape=shape)

    def cast(self, value: Value, dtype: str, name: str = "cast") -> Value:
        """The value in another dtype; itself if it has that dtype."""
        if self.dtype(value) == dtype:
            return value
        return self.call("Cast", [value], self.shape(value), name, dtype=dtype)

    def scalar(self, op: str, value: Value, number: float, name: str) -> Value:
        """One of the ``_<op>_scalar`` operators."""
        return self.call(op, [value], self.shape(value), name, scalar=number)

    def unary(self, op: str, value: Value, name: str) -> Value:
        """An elementwise operator of one input."""
        return self.call(op, [value], self.shape(value), name)

    def binary(self, op: str, left: Value, right: Value, name: str) -> Value:
        """One of the ``broadcast_`` operators."""
        shape = _broadcast(self.shape(left), self.shape(right))
        return self.call(op, [left, right], shape, name)

    def sum(self, value: Value, kept: int, name: str) -> Value:
        """The sum over all but the first ``kept`` axes."""
        shape = self.shape(value)
        if len(shape) == kept:
            return value
        axes = tuple(range(kept, len(shape)))
        return self.call("sum", [value], shape[:kept], name, axis=axes)

    def zeros(self, length: int, dtype: str, name: str) -> Value:
        """A vector of zeros."""
        return self.call("_zeros", [], (length,), name, shape=(length,), dtype=dtype)


def _broadcast(left: Extents, right: Extents) -> Extents:
    pairs = zip_longest(reversed(left), reversed(right), fillvalue=1)
    return tuple(b if a == 1 else a for a, b in pairs)[::-1]
