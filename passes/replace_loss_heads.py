"""Replacement of loss layers by what they return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.ir.ops import canonical
from graphopt.pipeline.base import Mode, Pass, PassContext

#: What a loss layer of this name returns of its first input; its backward does not matter here.
_FORWARD: Final[dict[str, str]] = {
    "LinearRegressionOutput": "_copy",
    "LogisticRegressionOutput": "sigmoid",
    "MAERegressionOutput": "_copy",
    "SVMOutput": "_copy",
}


@dataclass(frozen=True)
class ReplaceLossHeads(Pass):
    """No loss layer is left whose value does not depend on its label.

    Old Symbol models end in layers such as ``SoftmaxOutput``, which read a label for the gradient
    only. In inference they become the plain operator, and the label is not needed. Names stay.

    ``SoftmaxOutput`` over more than two axes without ``multi_output`` or ``preserve_shape``
    normalizes over several axes at once and is left.

    Example::

        // before
        graph net(%data: f32[8,10], %label: f32[8]) {
          %softmax = SoftmaxOutput(%data, %label) : f32[8,10]
          return %softmax
        }
        // after
        graph net(%data: f32[8,10], %label: f32[8]) {
          %softmax = softmax(%data) {axis=-1} : f32[8,10]
          return %softmax
        }
    """

    name: ClassVar[str] = "replace-loss-heads"
    modes: ClassVar[frozenset[Mode]] = frozenset({"inference"})

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace operators in place; linear."""
        edited = graph.copy()
        for node in graph:
            plain = _plain(node, graph, cx)
            if plain is not None:
                op, attrs = plain
                edited.update(node.but(op=op, attrs=attrs, inputs=node.inputs[:1]))
                cx.count("replaced")
        return edited


def _plain(node: Node, graph: Graph, cx: PassContext) -> tuple[str, Attrs] | None:
    """Operator and attributes that compute the same value, or ``None`` for another operator."""
    op = canonical(node.op)
    if op in _FORWARD:
        return _FORWARD[op], Attrs()
    if op != "SoftmaxOutput":
        return None
    if node.attrs.get("multi_output"):
        return "softmax", Attrs(axis=1)
    if node.attrs.get("preserve_shape") or graph.type_of(node.inputs[0]).rank == 2:
        return "softmax", Attrs(axis=-1)
    cx.missed("it normalizes over several axes at once", node)
    return None
