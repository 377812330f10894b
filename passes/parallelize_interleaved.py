"""Attention's products of interleaved operands, computed by one thread each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.backend.heads import INTERLEAVED
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import INTERLEAVED_DOT, Node
from graphopt.ir.ops import canonical
from graphopt.pipeline.base import Pass, PassContext


@dataclass(frozen=True)
class ParallelizeInterleaved(Pass):
    """Threads share the matrices of ``_contrib_interleaved_matmul_*``, not every single product.

    BERT of GluonNLP and Sockeye's transformers keep queries, keys and values interleaved, (rows,
    batch, heads * parts * columns), and multiply them where they lie. MXNet computes one product
    after the other, each with all threads, from rows that lie a page or more apart. Here a thread
    copies what it multiplies and computes the whole product. Forward and backward; only float32 on
    the CPU.

    Args:
        min_batch: products below which MXNet's way stays.
        max_mega_macs: millions of multiplications of one product above which it stays.

    Example::

        // before
        graph net(%qkv: f32[16,4,96]) {
          %s = _contrib_interleaved_matmul_selfatt_qk(%qkv) {heads=2} : f32[8,16,16]
          return %s
        }
        // after
        graph net(%qkv: f32[16,4,96]) {
          %s = graphopt_interleaved_dot(%qkv) {heads=2, kind="selfatt_qk"} : f32[8,16,16]
          return %s
        }
    """

    name: ClassVar[str] = "parallelize-interleaved"

    min_batch: int = 2
    max_mega_macs: int = 64

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Change nodes in place; linear."""
        found = [node for node in graph if canonical(node.op).startswith(INTERLEAVED)]
        why = self._refusal(cx) if found else None
        if why is not None:
            cx.missed(f"interleaved products stay: {why}", found[0])
            return graph
        held = held_nodes(graph)
        edited = graph.copy()
        for node in found:
            why = self._unfit(graph, node)
            if node.id in held or node.after:
                why = "a control dependency names it"
            if why is not None:
                cx.missed(f"interleaved products stay: {why}", node)
                continue
            kind = canonical(node.op).removeprefix(INTERLEAVED)
            attrs = Attrs(kind=kind, heads=node.attrs["heads"])
            edited.update(node.but(op=INTERLEAVED_DOT, attrs=attrs))
            cx.passed("its products are computed by one thread each", node)
            cx.count("replaced")
        return edited

    def _refusal(self, cx: PassContext) -> str | None:
        if cx.settings.precise:
            return "their sums would be rounded in another order"
        return None if cx.target is None else cx.target.why_no_kernels(cx.settings.device)

    def _unfit(self, graph: Graph, node: Node) -> str | None:
        types = [graph.type_of(value) for value in node.inputs]
        if not all(type_.is_static for type_ in (*types, node.type)):
            return "a shape is not known"
        if node.type.dtype != "float32":
            return f"they multiply {node.type.dtype}"
        # scores have one row and one column for each pair of places, mixtures are as wide as heads
        makes_scores = canonical(node.op).endswith("_qk")
        scores = node.type if makes_scores else types[1]
        batch, _, others = (extent or 0 for extent in scores.shape or ())
        if batch < self.min_batch:
            return f"{batch} products are too few"
        heads = types[0] if makes_scores else node.type
        if (heads.size or 0) // max(batch, 1) * others > self.max_mega_macs * 1_000_000:
            return "their matrices are large enough for all threads"
        return None
