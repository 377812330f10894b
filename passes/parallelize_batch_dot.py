"""Batches of small matrix products, computed by one thread each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.ir.attrs import AttrValue
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARALLEL_BATCH_DOT, Node, NodeId
from graphopt.ir.ops import canonical
from graphopt.passes.fusion.region import origin_of
from graphopt.passes.layout.heads import Heads, heads_read, heads_written
from graphopt.pipeline.base import Pass, PassContext


@dataclass(frozen=True)
class ParallelizeBatchDot(Pass):
    """Threads share the matrices of a ``batch_dot``, instead of sharing every single product.

    MXNet multiplies one pair of matrices after the other, each with all threads, which wait for
    each other longer than they compute when matrices are as small as attention's. With a thread for
    every product, 96 products of 128x64 by 64x128 take less than half the time on two threads.
    Forward and backward; only float32 on the CPU.

    Heads of attention are read and written where they lie, (batch, rows, heads, columns): the
    transposes that put them one behind the other, and their gradients, are gone.

    Args:
        min_batch: products below which MXNet's way stays.
        max_mega_macs: millions of multiplications of one product above which it stays.

    Example::

        // before
        graph net(%q: f32[96,128,64], %k: f32[96,128,64]) {
          %s = batch_dot(%q, %k) {transpose_b=True} : f32[96,128,128]
          return %s
        }
        // after
        graph net(%q: f32[96,128,64], %k: f32[96,128,64]) {
          %s = graphopt_batch_dot(%q, %k) {transpose_a=False, transpose_b=True} : f32[96,128,128]
          return %s
        }
    """

    name: ClassVar[str] = "parallelize-batch-dot"

    min_batch: int = 8
    max_mega_macs: int = 64

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Change nodes in place; linear."""
        held = held_nodes(graph)
        found = [
            node
            for node in graph
            if canonical(node.op) == "batch_dot" and node.id not in held and not node.after
        ]
        why = self._refusal(cx) if found else None
        if why is not None:
            cx.missed(f"batch_dot stays: {why}", found[0])
            return graph
        edited = graph.copy()
        for node in found:
            why = self._unfit(graph, node)
            if why is not None:
                cx.missed(f"batch_dot stays: {why}", node)
                continue
            heads = _heads(edited, edited[node.id], held)
            _replace(edited, edited[node.id], heads)
            cx.passed("its products are computed by one thread each", node)
            cx.count("replaced")
            if any(heads):
                cx.count("transposes", sum(each is not None for each in heads))
        return edited

    def _refusal(self, cx: PassContext) -> str | None:
        if cx.settings.precise:
            return "its sums would be rounded in another order"
        return None if cx.target is None else cx.target.why_no_kernels(cx.settings.device)

    def _unfit(self, graph: Graph, node: Node) -> str | None:
        left = graph.type_of(node.inputs[0])
        if not node.type.is_static or not left.is_static or node.type.shape is None:
            return "its shape is not known"
        if node.type.dtype != "float32":
            return f"it multiplies {node.type.dtype}"
        if len(node.type.shape) != 3:
            return f"its operands have {len(node.type.shape)} axes, not 3"
        batch, rows, columns = (extent or 0 for extent in node.type.shape)
        if batch < self.min_batch:
            return f"{batch} products are too few"
        inner = (left.size or 0) // max(batch * rows, 1)
        if rows * columns * inner > self.max_mega_macs * 1_000_000:
            return "its matrices are large enough for all threads"
        return None


#: Of a product's operands and of its result, those that are heads.
_Heads = tuple[Heads | None, Heads | None, Heads | None]


def _heads(graph: Graph, node: Node, held: frozenset[NodeId] | set[NodeId]) -> _Heads:
    left, right = (heads_read(graph, value, held) for value in node.inputs)
    return left, right, heads_written(graph, node.out(), held)


def _replace(graph: Graph, node: Node, heads: _Heads) -> None:
    """One node for a product and, if there are such, the transposes around it."""
    left, right, result = heads
    attrs: dict[str, AttrValue] = {}
    for key, found in (("transpose_a", left), ("transpose_b", right)):
        attrs[key] = node.attrs.flag(key) != (found is not None and found.is_turned)
    for key, found in (("heads_a", left), ("heads_b", right), ("heads_out", result)):
        if found is not None:
            attrs[key] = found.count
    if not any(heads):
        graph.update(node.but(op=PARALLEL_BATCH_DOT, attrs=type(node.attrs)(attrs)))
        return
    reads = [each.value if each else value for each, value in zip(heads, node.inputs, strict=False)]
    before = [inner for each in (left, right) if each for inner in each.nodes]
    nodes = list(dict.fromkeys([*before, node, *(result.nodes if result else ())]))
    last = nodes[-1]
    name = graph.unique_name(f"{node.name or node.op}_heads")
    made = graph.add(PARALLEL_BATCH_DOT, reads, attrs, last.types, name, origin=origin_of(nodes))
    graph.replace_uses(last.out(), made.out())
    for inner in reversed(nodes):
        if not graph.node_users(inner.id) and not graph.is_output(inner.out()):
            graph.erase(inner.id)
