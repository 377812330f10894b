"""MXNet's oneDNN subgraphs, taken apart into the operators they were made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.pipeline.base import Mode, Pass, PassContext
from graphopt.rewrite.substitute import inline

_SUBGRAPHS = frozenset(
    {
        "_sg_mkldnn_conv",
        "_sg_mkldnn_fully_connected",
        "_sg_mkldnn_selfatt_qk",
        "_sg_mkldnn_selfatt_valatt",
    }
)


@dataclass(frozen=True)
class InlineOnednn(Pass):
    """A oneDNN subgraph becomes the operators it was made of.

    ``block.optimize_for(x, backend="MKLDNN")`` and ``symbol.get_backend_symbol("MKLDNN")`` put
    operators into subgraphs, and a model exported behind them has these only. Nothing else here
    knows what they compute; MXNet's executor puts the operators into subgraphs again where that is
    how the graph runs. Only in inference, which is all that they are for: MXNet lets no gradient
    through them. Those that compute in 8 bits stay: that is not what their operators do. Types of
    what lay inside a subgraph are left to ``infer-types``.

    Example::

        // before
        graph net(%x: f32[1,3,8,8], param %w: f32[4,3,3,3], param %b: f32[4]) {
          %y = _sg_mkldnn_conv(%x, %w, %b) {with_act="true"} : f32[1,4,6,6] [
            graph body(%data: ?, %weight: ?, %bias: ?) {
              %c = Convolution(%data, %weight, %bias) {kernel=(3, 3), num_filter=4}
              %r = Activation(%c) {act_type="relu"}
              return %r
            }
          ]
          return %y
        }
        // after
        graph net(%x: f32[1,3,8,8], param %w: f32[4,3,3,3], param %b: f32[4]) {
          %c = Convolution(%x, %w, %b) {kernel=(3, 3), num_filter=4}
          %r = Activation(%c) {act_type="relu"} : f32[1,4,6,6]
          return %r
        }
    """

    name: ClassVar[str] = "inline-onednn"
    modes: ClassVar[frozenset[Mode]] = frozenset({"inference"})

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace subgraphs one by one; linear."""
        found = [node for node in graph if node.op in _SUBGRAPHS]
        if not found:
            return graph
        held = held_nodes(graph)
        edited = graph.copy()
        for node in found:
            why = "other nodes are ordered around it" if node.id in held else _why_opaque(node)
            if why is not None:
                cx.missed(f"oneDNN's subgraph stays: {why}", node)
                continue
            inline(edited, edited[node.id], _typed_body(node))
            cx.count("inlined")
        return edited


def _why_opaque(node: Node) -> str | None:
    if node.attrs.flag("quantized"):
        return "it computes in 8 bits"
    if node.after:
        return "it has to run after other nodes"
    if len(node.graphs) != 1:
        return "it does not hold its operators"
    (body,) = node.graphs
    if len(body.inputs) != len(node.inputs) or len(body.outputs) != len(node.types):
        return "its operators have other inputs or outputs"
    return None


def _typed_body(node: Node) -> Graph:
    """The operators, those at the end with the types that are known of the subgraph's outputs."""
    body = node.graphs[0].copy()
    for value, type_ in zip(body.outputs, node.types, strict=True):
        end = body[value.node]
        if not end.is_input and len(end.types) == 1:
            body.update(end.but(types=(type_,)))
    return body
