"""Regions of convolutions for images of other sizes than they were compiled for.

A region's program has the sizes of its images in it, so each size has a graph of its own. Nothing
but shapes is inferred for it: algorithms are chosen and parameters packed as they were.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.backend.infer import ShapeInference, Types
from graphopt.errors import UnsupportedError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONVOLUTIONS, Node, NodeId, Value
from graphopt.ir.types import Shape
from graphopt.kernels.convolutions.spec import spec_of
from graphopt.kernels.convolutions.windows import is_dense, why_not
from graphopt.rewrite.substitute import inline

#: For each region where its values are.
_Places = dict[NodeId, dict[Value, Value]]


class Resized:
    """One graph for inputs of several shapes."""

    def __init__(self, graph: Graph) -> None:
        """Of a graph with static types, whose regions read plain parameters."""
        self._graph = graph
        flat, self._places = _flattened(graph)
        self._inference = ShapeInference(flat)

    def graph(self, shapes: Mapping[str, Shape]) -> Graph:
        """A copy for inputs of other shapes; its regions read what is packed for the original's.

        Args:
            shapes: of the inputs that have others, by name.

        Raises:
            InputError: they do not fit; the message names the node.
            UnsupportedError: a region cannot hold what it does at these sizes.
        """
        given = {n.id: shapes[n.name] for n in self._graph.inputs if n.name in shapes}
        types = self._inference.types(given)
        made = self._graph.copy()
        for node in self._graph:
            if node.op != CONVOLUTIONS:
                made.update(node.but(types=types[node.id]))
                continue
            body = _retyped(node, self._places[node.id], types)
            returned = tuple(body.type_of(value) for value in body.outputs)
            attrs = node.attrs.set(like=str(spec_of(node)))
            made.update(node.but(types=returned, graphs=(body,), attrs=attrs))
        return made


def _flattened(graph: Graph) -> tuple[Graph, _Places]:
    """The graph with regions as the operators they hold, and where the values of these are."""
    flat = graph.copy()
    regions = [node for node in graph if node.op == CONVOLUTIONS]
    return flat, {node.id: inline(flat, flat[node.id], node.graphs[0]) for node in regions}


def _retyped(node: Node, places: Mapping[Value, Value], types: Types) -> Graph:
    """The body of a region, with the types that its values have where they lie."""
    body = node.graphs[0].copy()
    for inner in node.graphs[0]:
        lie = [places[value] for value in inner.values]
        body.update(inner.but(types=tuple(types[place.node][place.index] for place in lie)))
    _check(body)
    return body


def _check(body: Graph) -> None:
    """Raise where a region cannot hold one of its operators at these sizes.

    Dense layers are not asked about: it is worth it or not to pack them, and they are packed.
    """
    for inner in body:
        why = None if inner.is_input or is_dense(inner) else why_not(body, inner)
        if why is not None:
            raise UnsupportedError(f"no region of such sizes has node {inner.name!r}: {why}")
