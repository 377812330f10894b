"""BatchNorm that no layer took up, as the depthwise convolution that oneDNN can fuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.analysis.frozen import frozen_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId
from graphopt.passes.folding.affine import Affine, affine_of
from graphopt.passes.folding.build import FrozenBuilder, Refused
from graphopt.pipeline.base import Mode, Pass, PassContext


@dataclass(frozen=True)
class BatchNormToConvolution(Pass):
    """A BatchNorm over the channels of images becomes a depthwise 1x1 convolution.

    For those that ``fold-batch-norm`` could not fold, as in front of a ReLU in a DenseNet or a
    ResNet v2. In inference both compute ``x * scale + shift`` per channel, but MXNet's oneDNN
    rewrites fuse a ReLU into the convolution only, and keep its blocked layout. Only on the CPU,
    for float32 data of four axes with channels on axis 1.

    Example::

        // before
        graph net(%x: f32[1,2,8,8], param %gamma: f32[2], param %beta: f32[2], aux %mean: f32[2],
                  aux %var: f32[2]) {
          %pool = Pooling(%x) {kernel=(2, 2)} : f32[1,2,7,7]
          %bn = BatchNorm(%pool, %gamma, %beta, %mean, %var) : f32[1,2,7,7]
          return %bn
        }
        // after
        graph net(%x: f32[1,2,8,8], param %gamma: f32[2], param %beta: f32[2], aux %mean: f32[2],
                  aux %var: f32[2]) {
          %pool = Pooling(%x) {kernel=(2, 2)} : f32[1,2,7,7]
          %bn_var_eps = _plus_scalar(%var) {scalar=0.001} : f32[2]
          %bn_scale = rsqrt(%bn_var_eps) : f32[2]
          %bn_weight = Reshape(%bn_scale) {shape=(2, 1, 1, 1)} : f32[2,1,1,1]
          %bn_centre = broadcast_mul(%mean, %bn_scale) : f32[2]
          %bn_shift = broadcast_sub(%beta, %bn_centre) : f32[2]
          %bn = Convolution(%pool, %bn_weight, %bn_shift)
                {kernel=(1, 1), no_bias=False, num_filter=2, num_group=2} : f32[1,2,7,7]
          return %bn
        }
    """

    name: ClassVar[str] = "batch-norm-to-convolution"
    modes: ClassVar[frozenset[Mode]] = frozenset({"inference"})
    needs_frozen: ClassVar[bool] = True
    cpu_only: ClassVar[str] = "it pays on the CPU only"
    rounding: ClassVar[str] = "the statistics are rounded once more"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace nodes in place; linear."""
        edited = graph.copy()
        frozen = set(frozen_nodes(graph))
        held = held_nodes(graph)
        for node in graph:
            affine = _image_norm(graph, node, frozen)
            if affine is None or node.id in frozen:
                continue
            if node.id in held:
                cx.missed("another node has to run after it", node)
                continue
            _replace(edited, affine, frozen)
            cx.count("replaced")
        return edited


def _image_norm(graph: Graph, node: Node, frozen: set[NodeId]) -> Affine | None:
    try:
        affine = affine_of(graph, node, frozen)
    except Refused:
        return None  # fold-batch-norm has told the reason
    if affine is None or not affine.is_batch_norm or affine.axis != 1:
        return None
    type_ = graph.type_of(affine.data)
    return affine if type_.rank == 4 and type_.dtype == "float32" else None


def _replace(graph: Graph, affine: Affine, frozen: set[NodeId]) -> None:
    node = affine.node
    build = FrozenBuilder(graph, frozen, node.name, node.origin)
    scale, shift = affine.factors(build, "float32")
    assert not isinstance(scale, float)
    assert not isinstance(shift, float)
    assert scale is not None
    assert shift is not None
    weight = build.reshape(scale, (affine.channels, 1, 1, 1), "weight")
    attrs = {"kernel": (1, 1), "no_bias": False}
    attrs |= {"num_filter": affine.channels, "num_group": affine.channels}
    graph.update(
        node.but(
            op="Convolution",
            inputs=(affine.data, weight, shift),
            attrs=type(node.attrs)(attrs),
            types=node.types[:1],
        )
    )
