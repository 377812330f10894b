"""The same passes for data of another size, to see whether a file serves more than one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from graphopt.backend.findings import Findings
from graphopt.errors import GraphoptError
from graphopt.ir.sizes import Shapes, longer

if TYPE_CHECKING:
    from graphopt.cli.models import Model
    from graphopt.ir.graph import Graph
    from graphopt.ir.node import Node


def findings_of(graph: Graph, akin: Iterable[Findings] = ()) -> Findings:
    """For what is measured of a graph, or taken from one that differs from it in sizes only."""
    return Findings([_static(node) for node in graph.role("data")], akin)


def of_other_sizes(model: Model, optimize: Callable[[Graph], Graph]) -> Graph | None:
    """The optimized graph for data that are longer by one on all axes that may be.

    Args:
        model: has shapes already.
        optimize: the passes.

    Returns:
        ``None`` where no axis may be of another length, or not all shapes are known.
    """
    data = model.graph.role("data")
    if not all(node.type.is_static for node in data):
        return None
    shapes: Shapes = {node.name: _static(node) for node in data}
    found = None
    for axis in range(max(map(len, shapes.values()), default=0)):
        wider = longer(shapes, axis)
        graph = None if wider == shapes else _sized(model, wider)
        if graph is not None:
            found, shapes = graph, wider
    return None if found is None else optimize(found)


def _sized(model: Model, shapes: Shapes) -> Graph | None:
    """The model for these shapes, with the parameters it has."""
    try:
        graph = model.sized(shapes)
    except GraphoptError:
        return None
    types = {node.name: node.type for node in graph.inputs}
    kept = all(types[n.name] == n.type for n in model.graph.inputs if n.op != "data")
    return graph if kept else None


def _static(node: Node) -> tuple[int, ...]:
    return tuple(extent or 0 for extent in node.type.shape or ())
