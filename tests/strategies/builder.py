"""A graph under construction, whose operators, inputs and numbers hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, DATA, PARAM, Value
from graphopt.ir.ops import info
from graphopt.ir.types import TensorType

Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy], object]

SHAPES: tuple[Shape, ...] = (
    (2, 3),
    (3,),
    (2, 3, 4, 4),
    (2, 3, 4),
    (4, 3),
    (1, 3),
    (2, 1),
    (1, 3, 1, 1),
    (2, 4, 3),
    (1,),
    (2, 4, 5, 5),
)
SCALARS = (0.0, 1.0, -1.0, 2.0, 0.5, -0.0, 3.0, -2.5, 1, 0, 2)
LARGEST = 512


@dataclass
class Builder:
    """A graph under construction, with the shape of every float value in it."""

    draw: Draw
    dtype: str = "float32"
    graph: Graph = field(default_factory=lambda: Graph("g"))
    shapes: dict[Value, Shape] = field(default_factory=dict)
    #: Values that no rounding has touched.
    exact: list[Value] = field(default_factory=list)
    #: Values that some operator reads.
    read: set[Value] = field(default_factory=set)

    def chance(self, percent: int) -> bool:
        """True for about ``percent`` of the examples; shrinks to False."""
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def one_of(self, options):
        return self.draw(st.sampled_from(options))

    def input(self, shape: Shape, role: str = DATA, name: str = "") -> Value:
        prefix = {DATA: "x", PARAM: "w", AUX: "a"}[role]
        name = f"{prefix}{len(self.graph.inputs)}{name and '_'}{name}"
        value = self.graph.add_input(name, role, TensorType(self.dtype, shape)).out()
        if role != AUX:
            self.shapes[value] = shape
            self.exact.append(value)
        return value

    def param(self, shape: Shape, name: str) -> Value:
        """A parameter: new, of a similar layer (shared), or computed from one."""
        old = [v for v, s in self.shapes.items() if s == shape and self.graph[v.node].op == PARAM]
        if old and self.chance(30):
            return self.one_of(old)
        value = self.input(shape, PARAM, name)
        if self.chance(10):
            return self.op("_mul_scalar", [value], {"scalar": 0.5}, [shape])
        return value

    def op(self, op: str, inputs: list[Value], attrs: dict, shapes: list[Shape]) -> Value:
        """Add an operator with these output shapes; returns its first value."""
        name = f"n{len(self.graph)}"
        if self.chance(3):
            attrs = attrs | {"__ctx_group__": self.one_of(["dev1", "dev2"])}
        if info(op).aliases and self.chance(5):
            op = self.one_of(info(op).aliases)
        earlier = [value.node for value in self.shapes if not self.graph[value.node].is_input]
        after = [self.one_of(earlier)] if earlier and self.chance(2) else []
        types = [TensorType()] * len(shapes)
        node = self.graph.add(op, inputs, attrs, types, name, after=after)
        self.read.update(inputs)
        for value, shape in zip(node.values, shapes, strict=True):
            self.shapes[value] = shape
        return node.out()

    def pick(self, fits: Callable[[Shape], bool] = lambda shape: True) -> Value | None:
        """A value whose shape fits, mostly one that nothing reads yet; None if there is none."""
        found = [value for value, shape in self.shapes.items() if fits(shape)]
        if not found:
            return None
        unread = [value for value in found if value not in self.read] or found
        return self.one_of(found if self.chance(30) else unread[-3:][::-1])

    def need(self, fits: Callable[[Shape], bool], shape: Shape) -> Value:
        """Like ``pick``, with a new input of ``shape`` where nothing fits."""
        found = self.pick(fits)
        return self.input(shape) if found is None else found
