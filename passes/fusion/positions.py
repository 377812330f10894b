"""Positions along an axis, and whole numbers to compare them with, as kernels can compute both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphopt.ir.attrs import Attrs
from graphopt.ir.constant import add_constant
from graphopt.ir.graph import Graph
from graphopt.ir.node import Value
from graphopt.ir.reshape import codes_for
from graphopt.ir.types import TensorType

#: Positions are a constant of the graph, and have to be whole numbers of float32.
LONGEST = 1 << 20
#: What is compared with positions.
INTEGERS = frozenset({"int32", "int64"})
FLOATS = frozenset({"float32", "float64"})


@dataclass
class Positions:
    """Adds nodes to a graph; remembers which values are there as whole floats already.

    Attributes:
        graph: that is edited.
        origin: names of the nodes that what is added stands for.
    """

    graph: Graph
    origin: list[str] = field(default_factory=list)
    _whole: dict[tuple[Value, str], Value] = field(default_factory=dict)

    def along(self, type_: TensorType, axis: int, name: str) -> Value:
        """0, 1, 2 ... along an axis of a type, of extent 1 elsewhere."""
        extents = tuple(extent or 0 for extent in type_.shape or ())
        shape = tuple(e if at == axis else 1 for at, e in enumerate(extents))
        array = np.arange(extents[axis], dtype=type_.dtype).reshape(shape)
        return add_constant(self.graph, array, self.graph.unique_name(f"{name}_positions")).out()

    def whole(self, value: Value, shape: Sequence[int], dtype: str) -> Value:
        """A value as whole numbers of a float dtype and that shape, without a gradient."""
        graph, name = self.graph, self.graph[value.node].name
        found = self._whole.get((value, dtype))
        if found is None:
            type_ = graph.type_of(value)
            found = self.add("BlockGrad", (value,), Attrs(), type_, f"{name}_stop")
            if type_.dtype != dtype:
                cast = TensorType(dtype, type_.shape)
                found = self.add("Cast", (found,), Attrs(dtype=dtype), cast, f"{name}_cast")
            if type_.dtype not in INTEGERS:
                cast = graph.type_of(found)
                found = self.add("fix", (found,), Attrs(), cast, f"{name}_whole")
            self._whole[value, dtype] = found
        type_ = TensorType(dtype, tuple(shape))
        codes = codes_for([extent or 0 for extent in graph.type_of(value).shape or ()], shape)
        return self.add("Reshape", (found,), Attrs(shape=codes), type_, f"{name}_row")

    def filled(self, value: float, rank: int, dtype: str, name: str) -> Value:
        """One number, of a rank."""
        shape = (1,) * rank
        attrs, type_ = Attrs(dtype=dtype, shape=shape), TensorType(dtype, shape)
        if value == 0:
            return self.add("_zeros", (), attrs, type_, name)
        return self.add("_full", (), attrs.set(value=value), type_, name)

    def add(
        self, op: str, inputs: tuple[Value, ...], attrs: Attrs, type_: TensorType, name: str
    ) -> Value:
        """The result of a new node."""
        name = self.graph.unique_name(name)
        return self.graph.add(op, inputs, attrs, (type_,), name, origin=self.origin).out()


def axis_of(attrs: Attrs, default: int, type_: TensorType) -> int:
    """The axis an operator's attribute names, of a type of known rank."""
    given = attrs.get("axis", default)
    return int(default if given is None else given) % (type_.rank or 1)
