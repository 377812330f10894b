"""Fold BatchNorm, and any other scale and shift per channel, into the weights next to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.analysis.frozen import frozen_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.passes.folding.affine import Affine, affine_of
from graphopt.passes.folding.build import FrozenBuilder, Refused
from graphopt.passes.folding.digits import may_cancel
from graphopt.passes.folding.linear import layer_above
from graphopt.passes.folding.weights import (
    ANCHORS,
    Anchor,
    add_shift,
    anchor_of,
    flattens,
    scale_bias,
    scale_weight,
    sum_shift,
    work_dtype,
)
from graphopt.pipeline.base import Mode, Pass, PassContext


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Scale and shift per channel cost nothing where a layer's weights can take them up.

    In inference a BatchNorm, by its moving statistics, is ``x * scale + shift``, as are arithmetic
    with a number and ``broadcast_`` arithmetic with a parameter of one number per channel. Each is
    folded into the Convolution, Deconvolution or FullyConnected it stands behind, whose output
    nothing else may read, or else into the one it stands in front of. In front of padding only a
    scale can be folded: the shift would be missing at the border. Of data as the graph is given it,
    only small numbers are shifts that can: what a BatchNorm leaves of the number of a year is a
    thousandth of it, and the layer's sums would be as inexact as sums of years. Numbers that cancel
    each other stay, as they are there to round. Several in a row fold one after the other. A plain
    number also moves up through views and products: the ``1 / sqrt(width)`` of attention scores
    ends in the projection of the queries.

    The new weights are nodes on the parameters, which keep their values and names; a frozen graph
    computes them once. What was folded away leaves its name to the operator that computes its value
    now.

    Example::

        // before
        graph net(%x: f32[1,2,8,8], param %w: f32[4,2,1,1],
                  param %gamma: f32[4], param %beta: f32[4], aux %mean: f32[4], aux %var: f32[4]) {
          %conv = Convolution(%x, %w) {kernel=(1, 1), no_bias=True, num_filter=4} : f32[1,4,8,8]
          %bn = BatchNorm(%conv, %gamma, %beta, %mean, %var) : f32[1,4,8,8]
          return %bn
        }
        // after
        graph net(%x: f32[1,2,8,8], param %w: f32[4,2,1,1],
                  param %gamma: f32[4], param %beta: f32[4], aux %mean: f32[4], aux %var: f32[4]) {
          %bn_var_eps = _plus_scalar(%var) {scalar=0.001} : f32[4]
          %bn_scale = rsqrt(%bn_var_eps) : f32[4]
          %bn_shaped = Reshape(%bn_scale) {shape=(4, 1, 1, 1)} : f32[4,1,1,1]
          %bn_weight = broadcast_mul(%w, %bn_shaped) : f32[4,2,1,1]
          %bn_centre = broadcast_mul(%mean, %bn_scale) : f32[4]
          %bn_shift = broadcast_sub(%beta, %bn_centre) : f32[4]
          %bn = Convolution(%x, %bn_weight, %bn_shift)
                {kernel=(1, 1), no_bias=False, num_filter=4} : f32[1,4,8,8]
          return %bn
        }
    """

    name: ClassVar[str] = "fold-batch-norm"
    modes: ClassVar[frozenset[Mode]] = frozenset({"inference"})
    needs_frozen: ClassVar[bool] = True
    rounding: ClassVar[str] = "folded weights are rounded once more"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """See the class."""
        fold = _Fold(graph.copy(), cx)
        return fold.graph if fold.run() else graph


class _Fold:
    """One run: first backwards into layers, in topological order, then forwards, in reverse.

    A folded node keeps its id, so nothing that reads it changes. What is left without a reader is
    erased at the end; until then it counts as ``dead``.
    """

    def __init__(self, graph: Graph, cx: PassContext) -> None:
        self.graph = graph
        self.cx = cx
        self.frozen = set(frozen_nodes(graph))
        self.outputs = set(graph.outputs)
        self.held = held_nodes(graph)
        self.dead: list[NodeId] = []
        self.gone: set[NodeId] = set()

    def run(self) -> bool:
        left = [problem for node in self.graph.topological() for problem in self.backwards(node)]
        missed = [remark for node, why in reversed(left) for remark in self.forwards(node, why)]
        for affine, why in reversed(missed):
            self.cx.missed(why, affine)
        for node in self.dead:
            self.graph.erase(node)
        return bool(self.dead)

    # -- into the layer behind which the node stands ---------------------------------------------

    def backwards(self, node: Node) -> Iterator[tuple[NodeId, str]]:
        """Fold, or yield the node with the reason if it may still be folded forwards."""
        if node.is_input or node.id in self.frozen:
            return
        try:
            affine = affine_of(self.graph, self.graph[node.id], self.frozen)
        except Refused as refused:
            self.cx.missed(str(refused), node)
            return
        if affine is None:
            return
        try:
            self.fold_backwards(affine)
        except Refused as refused:
            if not self.fold_through(affine):
                yield node.id, str(refused)

    def fold_backwards(self, affine: Affine) -> None:
        graph, node = self.graph, affine.node
        layer = graph[affine.data.node]
        if canonical(layer.op) not in ANCHORS:
            raise Refused(f"it stands behind {layer.name!r} ({layer.op})")
        anchor = anchor_of(graph, layer, self.frozen)
        self.only_reader(layer)
        self.check_axis(affine, anchor)
        build = self.builder(anchor.node, node)
        dtype = work_dtype(build, anchor.weight)
        scale, shift = affine.factors(build, dtype)
        weight, bias = self.operands(build, anchor, dtype)
        weight = scale_weight(build, weight, anchor.output_side(), scale)
        bias = scale_bias(build, bias, scale)
        bias = add_shift(build, bias, shift, anchor.outputs, dtype)
        self.rebuild(build, anchor, layer, node, (layer.inputs[0], weight, bias))
        self.drop(layer.id)
        self.cx.passed("folded into the weights of the layer behind which it stands", node, layer)

    def fold_through(self, affine: Affine) -> bool:
        """Fold a plain factor into a layer that views and products separate from it."""
        graph, node = self.graph, affine.node
        if not affine.is_number or affine.has_shift:
            return False
        layer = layer_above(graph, affine.data, self.only_reader)
        if layer is None:
            return False
        try:
            anchor = anchor_of(graph, layer, self.frozen)
        except Refused:
            return False
        build = self.builder(layer, node)
        dtype = work_dtype(build, anchor.weight)
        scale, _ = affine.factors(build, dtype)
        weight, bias = self.operands(build, anchor, dtype)
        weight = scale_weight(build, weight, anchor.output_side(), scale)
        bias = scale_bias(build, bias, scale)
        self.rebuild(build, anchor, layer, layer, (layer.inputs[0], weight, bias))
        self.become(node, graph[affine.data.node])
        where = "from which views and products lead to it"
        self.cx.passed(f"folded into the weights of the layer {where}", node, layer)
        return True

    def become(self, node: Node, last: Node) -> None:
        """Give ``node`` the operator of ``last``, whose value it now is."""
        origin = tuple(dict.fromkeys((*_origin(last), *_origin(node))))
        copied = node.but(op=last.op, inputs=last.inputs, attrs=last.attrs, origin=origin)
        self.graph.update(copied.but(types=last.types, after=(*last.after, *node.after)))
        self.drop(last.id)

    def check_axis(self, affine: Affine, anchor: Anchor) -> None:
        rank = self.graph.type_of(affine.data).rank
        if affine.axis is None:
            return
        if rank is None or affine.axis != anchor.output_axis(rank):
            raise Refused(
                f"it scales axis {affine.axis}, which is not the channel axis of"
                f" {anchor.node.name!r}"
            )

    # -- into the layer in front of which the node stands ----------------------------------------

    def forwards(self, node: NodeId, before: str) -> Iterator[tuple[Node, str]]:
        """Fold, or yield the node with both reasons if somebody may wonder about it."""
        affine = None
        with suppress(Refused):  # by what stands beside it since
            affine = affine_of(self.graph, self.graph[node], self.frozen)
        if affine is None:
            return
        try:
            self.fold_forwards(affine)
        except Refused as refused:
            if affine.is_batch_norm or self.meets_anchor(affine):
                yield affine.node, f"not folded: {before}; {refused}"

    def fold_forwards(self, affine: Affine) -> None:
        graph, node = self.graph, affine.node
        view, layer = self.layer_after(node)
        anchor = anchor_of(graph, layer, self.frozen)
        if affine.has_shift and (anchor.has_padding or anchor.op == "Deconvolution"):
            raise Refused(f"its shift would be missing at the border of {layer.name!r}")
        build = self.builder(anchor.node, node)
        dtype = work_dtype(build, anchor.weight)
        shape = build.shape(affine.data)
        axis = anchor.input_axis(len(shape)) if affine.axis is None else affine.axis
        side = anchor.input_side(shape, axis)
        if may_cancel(graph, affine):
            raise Refused("its shift may be large beside what it leaves of the graph's data")
        scale, shift = affine.factors(build, dtype)
        weight, bias = self.operands(build, anchor, dtype)
        moved = None if shift is None else sum_shift(build, weight, side, shift)
        bias = add_shift(build, bias, moved, anchor.outputs, dtype)
        weight = scale_weight(build, weight, side, scale)
        if view is not None:
            graph.update(graph[view.id].but(inputs=(affine.data,)))
        data = affine.data if view is None else view.out()
        self.rebuild(build, anchor, node, layer, (data, weight, bias))
        self.drop(node.id)
        self.cx.passed(
            "folded into the weights of the layer in front of which it stands", node, layer
        )

    def layer_after(self, node: Node) -> tuple[Node | None, Node]:
        """The only reader of a node, and the Flatten that stands between, if any."""
        reader = self.only_reader(node)
        if canonical(reader.op) in ANCHORS:
            return None, reader
        layer = self.only_reader(reader) if canonical(reader.op) == "Flatten" else reader
        if canonical(layer.op) != "FullyConnected" or not flattens(layer):
            raise Refused(f"it stands in front of {layer.name!r} ({layer.op})")
        return reader, layer

    def meets_anchor(self, affine: Affine) -> bool:
        """Whether a layer stands directly before or behind the node."""
        around = [affine.data.node, *self.readers(affine.node.out())]
        return any(canonical(self.graph[node].op) in ANCHORS for node in around)

    # -- both ------------------------------------------------------------------------------------

    def only_reader(self, node: Node) -> Node:
        """What reads the node's value.

        Raises:
            Refused: it has to stay as it is, because several nodes need it.
        """
        if node.out() in self.outputs:
            raise Refused(f"{node.name!r} is an output of the graph")
        readers = self.readers(node.out())
        if len(readers) != 1:
            raise Refused(f"{node.name!r} has {len(readers)} readers")
        if node.id in self.held:
            raise Refused(f"a control dependency names {node.name!r}")
        return self.graph[readers[0]]

    def readers(self, value: Value) -> list[NodeId]:
        return [use.node for use in self.graph.users(value) if use.node not in self.gone]

    def drop(self, node: NodeId) -> None:
        self.dead.append(node)
        self.gone.add(node)

    def builder(self, layer: Node, node: Node) -> FrozenBuilder:
        origin = tuple(dict.fromkeys((*_origin(layer), *_origin(node))))
        return FrozenBuilder(self.graph, self.frozen, node.name, origin)

    def operands(
        self, build: FrozenBuilder, anchor: Anchor, dtype: str
    ) -> tuple[Value, Value | None]:
        """Weight and bias in the dtype to fold in."""
        bias = None if anchor.bias is None else build.cast(anchor.bias, dtype)
        return build.cast(anchor.weight, dtype), bias

    def rebuild(
        self,
        build: FrozenBuilder,
        anchor: Anchor,
        gone: Node,
        kept: Node,
        operands: tuple[Value, Value, Value | None],
    ) -> None:
        """Turn ``kept`` into the layer with new operands, which does the work of ``gone`` too."""
        data, weight, bias = operands
        given = build.dtype(anchor.weight)
        weight = build.cast(weight, given, "weight")
        inputs = (data, weight) if bias is None else (data, weight, build.cast(bias, given, "bias"))
        layer = anchor.node
        self.graph.update(
            kept.but(
                op=layer.op,
                inputs=inputs,
                attrs=layer.attrs.set(no_bias=bias is None),
                types=kept.types[:1],
                after=tuple(dict.fromkeys((*gone.after, *kept.after))),
                origin=build.origin,
            )
        )
        self.cx.count("folded")


def _origin(node: Node) -> tuple[str, ...]:
    return node.origin or (node.name,)
