"""The same passes for data of another size, to see whether a file serves more than one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from graphopt.analysis.meeting import meet_here, meet_nearby
from graphopt.backend.findings import Findings
from graphopt.errors import GraphoptError
from graphopt.ir.lengths import far_longer, longer, others

if TYPE_CHECKING:
    from graphopt.cli.models import Model
    from graphopt.ir.graph import Graph
    from graphopt.ir.node import Node
    from graphopt.ir.sizes import Shapes
    from graphopt.pipeline.manager import Result


def findings_of(graph: Graph, akin: Iterable[Findings] = ()) -> Findings:
    """For what is measured of a graph, or taken from one that differs from it in sizes only."""
    return Findings([_static(node) for node in graph.role("data")], akin)


class OtherSizes:
    """A model, which has shapes already, and its graphs for data of others."""

    def __init__(self, model: Model) -> None:
        """Of a model."""
        self._model = model
        self._own = {n.name: _static(n) for n in model.graph.role("data")}
        self._known: dict[tuple[Any, ...], Graph | None] = {}

    def results(self, optimize: Callable[[Graph], Result]) -> list[Result]:
        """What passes make of graphs for other data; see :func:`graphopt.ir.lengths.others`.

        Args:
            optimize: the passes.

        Returns:
            An empty list where no axis may be of another length, or not all shapes are known.
        """
        if not all(node.type.is_static for node in self._model.graph.role("data")):
            return []
        found = map(self._graph, others(self._own, self._is_open, self._widens))
        return [optimize(graph) for graph in found if graph is not None]

    def are_served(self, result: Result, beside: Iterable[Result]) -> bool:
        """Whether passes went by nothing that holds for some sizes alone, as far as one can tell.

        Args:
            result: what passes made of the model.
            beside: what they made of it for other data.
        """
        if any(result.shapes != other.shapes for other in beside):
            return False
        near = self._graph(longer(self._own, self._is_open))
        graphs = map(self._graph, far_longer(self._own, self._is_open))
        return near is not None and not any(
            meet_nearby(self._model.graph, near, far) for far in graphs if far is not None
        )

    def _is_open(self, shapes: Shapes) -> bool:
        return self._graph(shapes) is not None

    def _widens(self, shapes: Shapes) -> bool:
        graph = self._graph(shapes)
        return graph is not None and meet_here(self._model.graph, graph)

    def _graph(self, shapes: Shapes) -> Graph | None:
        key = tuple(shapes.values())
        if key not in self._known:
            self._known[key] = _sized(self._model, shapes)
        return self._known[key]


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
