"""Batches of small matrix products, computed by one thread each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.ir.attrs import AttrValue
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARALLEL_BATCH_DOT, Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.ir.reshape import codes_for
from graphopt.passes.fusion.region import origin_of
from graphopt.passes.layout.heads import Heads, heads_read, heads_written
from graphopt.pipeline.base import Pass, PassContext

_GEMM2 = "_linalg_gemm2"
_OPERATORS = ("batch_dot", _GEMM2)


@dataclass(frozen=True)
class ParallelizeBatchDot(Pass):
    """Threads share the matrices of a ``batch_dot``, instead of sharing every single product.

    MXNet multiplies one pair of matrices after the other, each with all threads, which wait for
    each other longer than they compute when matrices are as small as attention's. With a thread for
    every product, 96 products of 128x64 by 64x128 take less than half the time on two threads.
    Forward and backward; only float32 on the CPU.

    Heads of attention are read and written where they lie, (batch, rows, heads, columns): the
    transposes that put them one behind the other, and their gradients, are gone. Products of
    ``_linalg_gemm2`` are treated alike, with what they are multiplied by behind them.

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

    min_batch: int = 2
    max_mega_macs: int = 64

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Change nodes in place; linear."""
        held = held_nodes(graph)
        found = [
            node
            for node in graph
            if canonical(node.op) in _OPERATORS and node.id not in held and not node.after
        ]
        why = self._refusal(cx) if found else None
        if why is not None:
            cx.missed(f"{canonical(found[0].op)} stays: {why}", found[0])
            return graph
        edited = graph.copy()
        for node in found:
            why = self._unfit(graph, node)
            if why is not None:
                cx.missed(f"{canonical(node.op)} stays: {why}", node)
                continue
            product = edited[node.id]
            if canonical(node.op) == _GEMM2:
                product = _as_batch_dot(edited, product)
            heads = _heads(edited, product, held)
            _replace(edited, product, heads)
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
        rank = len(node.type.shape)
        if canonical(node.op) == _GEMM2:
            if rank < 3 or node.attrs.get("axis", -2) not in (-2, rank - 2):
                return "its matrices are not the last two of three or more axes"
        elif rank != 3:
            return f"its operands have {rank} axes, not 3"
        *outer, rows, columns = (extent or 0 for extent in node.type.shape)
        batch = math.prod(outer)
        if batch < self.min_batch:
            return f"{batch} products are too few"
        inner = (left.size or 0) // max(batch * rows, 1)
        if rows * columns * inner > self.max_mega_macs * 1_000_000:
            return "its matrices are large enough for all threads"
        return None


def _as_batch_dot(graph: Graph, node: Node) -> Node:
    """The product within a ``_linalg_gemm2``, with its factor and views around it."""
    name = node.name or "gemm2"

    def add(op: str, read: Value, shape: tuple[int, ...], attrs: dict[str, AttrValue]) -> Value:
        type_ = node.type.with_shape(shape)
        return graph.add(op, [read], attrs, [type_], graph.unique_name(name), origin=origin).out()

    origin = origin_of([node])
    reads = []
    for value in node.inputs:
        *outer, rows, columns = (extent or 0 for extent in graph.type_of(value).shape or ())
        flat = (math.prod(outer), rows, columns)
        codes = codes_for((*outer, rows, columns), flat)
        reads.append(value if len(outer) == 1 else add("Reshape", value, flat, {"shape": codes}))
    *outer, rows, columns = whole = tuple(extent or 0 for extent in node.type.shape or ())
    stack = node.type.with_shape((math.prod(outer), rows, columns))
    flags = {key: node.attrs.flag(key) for key in ("transpose_a", "transpose_b")}
    product = graph.add("batch_dot", reads, flags, [stack], graph.unique_name(name), origin=origin)
    value = product.out()
    if len(outer) > 1:
        codes = codes_for((math.prod(outer), rows, columns), whole)
        value = add("Reshape", value, whole, {"shape": codes})
    alpha = float(node.attrs.get("alpha", 1.0))
    if alpha != 1:
        value = add("_mul_scalar", value, whole, {"scalar": alpha})
    graph.replace_uses(node.out(), value)
    graph.erase(node.id)
    return product


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
