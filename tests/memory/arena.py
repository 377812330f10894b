"""Running a graph with every tensor in one arena, freed storage full of NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import assume

from graphopt.backend import reference
from graphopt.backend.random_feeds import random_feeds
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.types import TensorType
from graphopt.memory.memory_plan import MemoryPlan

Array = np.ndarray[Any, Any]
#: NaN in every floating dtype, and a value no index should have in the others.
POISON = 0xFF


def reference_run(graph: Graph) -> tuple[dict[str, Array], list[Array]]:
    """Random inputs of a random graph and its outputs; other graphs are drawn where it cannot."""
    assume(reference.supports(graph))
    assume(all(type_.is_static for node in graph for type_ in node.types))
    feeds = random_feeds(graph)
    try:
        return feeds, list(reference.run(graph, feeds))
    except Exception:
        assume(False)
        raise


class Arena(Mapping[Value, Array]):
    """Values of a graph, read from where the plan puts them; those outside lie in a dict."""

    def __init__(self, graph: Graph, plan: MemoryPlan) -> None:
        self.graph, self.plan = graph, plan
        self.bytes = np.full(plan.arena, POISON, np.uint8)
        self.outside: dict[Value, Array] = {}

    def write(self, value: Value, array: Array) -> None:
        place = self.place(value)
        if place is None:
            self.outside[value] = array
        else:
            offset, size = place
            assert array.nbytes == size
            self.bytes[offset : offset + size] = np.frombuffer(array.tobytes(), np.uint8)

    def __getitem__(self, value: Value) -> Array:
        place = self.place(value)
        if place is None:
            return self.outside[value]
        offset, size = place
        type_: TensorType = self.graph.type_of(value)
        raw = self.bytes[offset : offset + size].copy()
        return raw.view(np.dtype(type_.dtype)).reshape(type_.shape)

    def place(self, value: Value) -> tuple[int, int] | None:
        return self.plan.place_of(self.plan.schedule.numbers[value])

    def free(self, step: int) -> None:
        """Poison what dies with a step."""
        buffers = self.plan.buffers
        for at in np.flatnonzero(buffers.upper == step + 1):
            if step + 1 < len(self.plan.schedule.operations):
                offset = self.plan.offsets[at]
                self.bytes[offset : offset + buffers.size[at]] = POISON

    def __iter__(self) -> Any:
        return iter(self.plan.schedule.numbers)

    def __len__(self) -> int:
        return len(self.plan.schedule.numbers)


def run(graph: Graph, plan: MemoryPlan, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of a graph that runs in its plan's arena, in its plan's order."""
    arena = Arena(graph, plan)
    operations = plan.schedule.operations
    written = {number for operation in operations for number in operation.writes}
    value_of = {number: value for value, number in plan.schedule.numbers.items()}

    def evaluate(node: Node) -> None:
        arrays = reference._node(graph, node, feeds, arena, training=False)
        for value, array in zip(node.values, arrays, strict=False):
            if value in plan.schedule.numbers:
                arena.write(value, array)

    for node in graph.topological():
        if not any(plan.schedule.numbers.get(value) in written for value in node.values):
            evaluate(node)  # what lies outside
    for step, operation in enumerate(operations):
        evaluate(graph[value_of[operation.writes[0]].node])
        arena.free(step)
    return [arena[value] for value in graph.outputs]
