"""Removal of operators that no output needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import is_pure
from graphopt.ir.graph import Graph
from graphopt.ir.node import NodeId
from graphopt.pipeline.base import Pass, PassContext
from graphopt.pipeline.remarks import counted

_NAMED = 5


@dataclass(frozen=True)
class EliminateDeadCode(Pass):
    """Every operator is needed: by an output, or because it does more than compute its outputs.

    Operators that may do more stay, with all they read: those that write an input, unknown and
    opaque ones, nodes with nested graphs, and both sides of a control dependency. So do those that
    draw from the generator in this mode (a ``Dropout`` in training), for without them every later
    draw would be another one. Inputs stay even when nothing reads them.

    Example::

        // before
        graph net(%x: f32[8,4]) {
          %y = relu(%x) : f32[8,4]
          %unused = exp(%y) : f32[8,4]
          return %y
        }
        // after
        graph net(%x: f32[8,4]) {
          %y = relu(%x) : f32[8,4]
          return %y
        }
    """

    name: ClassVar[str] = "eliminate-dead-code"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Walk back from the outputs and the operators with effects; erase the rest."""
        needed = _reached(graph, (value.node for value in graph.outputs))
        kept = [
            node
            for node in graph
            if node.id not in needed and not is_pure(node, training=cx.training)
        ]
        if kept:
            cx.missed(
                f"{len(kept)} operators that no output needs stay, for they may have effects",
                *kept[:_NAMED],
            )
            needed |= _reached(graph, (node.id for node in kept))
        dead = [n for n in graph if n.id not in needed and not n.is_input]
        if not dead:
            return graph
        pruned = graph.copy()
        for node in reversed(dead):  # users before producers
            pruned.erase(node.id)
        cx.count("erased", len(dead))
        cx.passed(f"erased {counted(len(dead), 'operators')} that no output needs", *dead[:_NAMED])
        return pruned


def _reached(graph: Graph, roots: Iterable[NodeId]) -> set[NodeId]:
    """The roots and all they depend on, control dependencies included."""
    reached: set[NodeId] = set()
    pending = list(roots)
    while pending:
        node = graph[pending.pop()]
        if node.id not in reached:
            reached.add(node.id)
            pending.extend(value.node for value in node.inputs)
            pending.extend(node.after)
    return reached
