"""Types of all values, as the target infers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.ir.types import Shape, TensorType
from graphopt.pipeline.base import Pass, PassContext

_NAMED = 5


@dataclass(frozen=True)
class InferTypes(Pass):
    """Every value carries the type the target infers for it, parameters included.

    Inference starts from the types of the inputs. What the target leaves open keeps the type it
    had; a node whose number of outputs turns out to be another gets the inferred ones. Nested
    graphs are left as they are. Needs a target.

    Example::

        // before
        graph fc(%x: f32[8,4], param %w: ?) {
          %y = FullyConnected(%x, %w) {no_bias=True, num_hidden=3}
          return %y
        }
        // after
        graph fc(%x: f32[8,4], param %w: f32[3,4]) {
          %y = FullyConnected(%x, %w) {no_bias=True, num_hidden=3} : f32[8,3]
          return %y
        }
    """

    name: ClassVar[str] = "infer-types"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Ask the target, and take over what it knows."""
        if cx.target is None:
            if any(not type_.is_static for node in graph for type_ in node.types):
                cx.missed("types are incomplete, and there is no target to infer them")
            return graph
        typed = graph.copy()
        inferred = cx.target.infer_types(graph)
        for node in graph:
            types = _merged(node.types, inferred.get(node.id, node.types))
            if types != node.types:
                typed.update(node.but(types=types))
                cx.count("typed", sum(a != b for a, b in zip(types, node.types, strict=False)))
        _report_unknown(typed, cx)
        return typed


def _merged(known: tuple[TensorType, ...], found: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    if len(known) != len(found):
        return found
    return tuple(
        TensorType(new.dtype or old.dtype, _merged_shape(old.shape, new.shape))
        for old, new in zip(known, found, strict=True)
    )


def _merged_shape(old: Shape | None, new: Shape | None) -> Shape | None:
    """``new``, with extents it leaves open taken from ``old`` where the ranks agree."""
    if new is None or old is None or len(old) != len(new):
        return old if new is None else new
    return tuple(a if b is None else b for a, b in zip(old, new, strict=True))


def _report_unknown(graph: Graph, cx: PassContext) -> None:
    """Name the inputs that stand at the root of what stays unknown, or else the first nodes."""
    unknown = [node for node in graph if not all(type_.is_static for type_ in node.types)]
    if not unknown:
        return
    inputs: list[Node] = [node for node in unknown if node.is_input]
    if inputs:
        cx.missed(
            f"{len(unknown)} nodes have no static type; give the shapes of inputs", *inputs[:_NAMED]
        )
    else:
        cx.missed(
            f"{len(unknown)} nodes have no static type though all inputs do", *unknown[:_NAMED]
        )
