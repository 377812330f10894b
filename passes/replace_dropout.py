"""Dropout by masks that are computed, not kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import DROPOUT, Node
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.fusion.region import origin_of
from graphopt.pipeline.base import Mode, Pass, PassContext

#: Seeds are two words of 31 random bits.
_SEED = Attrs(low=0, high=2**31 - 1, shape=(2,), dtype="int32")


@dataclass(frozen=True)
class ReplaceDropout(Pass):
    """Masks of Dropout are functions of one seed a step.

    MXNet draws number after number from a Mersenne twister, and keeps a mask as large as the data
    until backward reads it. Here a node draws two words from MXNet's generator, which
    ``mx.random.seed`` sets, and each mask is a hash of them, of its own number and of where an
    element lies, by vectors; backward computes it again. Masks are others than MXNet would draw, of
    the same distribution. float32 on CPUs, without ``axes`` and of the mode ``training``.

    Example::

        // before
        graph g(%x: f32[4,8]) {
          %y = Dropout(%x) {p=0.1} : f32[4,8]
          return %y
        }
        // after
        graph g(%x: f32[4,8]) {
          %seed = _random_randint() {dtype="int32", high=2147483647, low=0, shape=(2,)} : i32[2]
          %y = graphopt_dropout(%x, %seed) {p=0.1, salt=0} : f32[4,8]
          return %y
        }
    """

    name: ClassVar[str] = "replace-dropout"
    modes: ClassVar[frozenset[Mode]] = frozenset({"training"})
    rounding: ClassVar[str] = "masks are others than MXNet draws"
    draws: ClassVar[str] = rounding

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace operators in place; linear."""
        found = [node for node in graph if canonical(node.op) == "Dropout"]
        if not found:
            return graph
        why = None if cx.target is None else cx.target.why_no_kernels(cx.settings.device)
        if why is not None:
            cx.missed(f"Dropout stays: {why}", found[0])
            return graph
        held = held_nodes(graph)
        edited = graph.copy()
        seed: Node | None = None
        for salt, node in enumerate(found):
            why = _unfit(graph, node)
            if node.id in held or node.after:
                why = "a control dependency names it"
            if why is not None:
                cx.missed(f"Dropout stays: {why}", node)
                continue
            if seed is None:
                name, type_ = edited.unique_name("seed"), TensorType("int32", (2,))
                seed = edited.add(
                    "_random_randint", (), _SEED, (type_,), name, origin=origin_of([node])
                )
            edited.update(
                node.but(
                    op=DROPOUT,
                    inputs=(node.inputs[0], seed.out()),
                    attrs=Attrs(p=float(node.attrs.get("p", 0.5)), salt=salt),
                    types=node.types[:1],
                )
            )
            cx.count("replaced")
        return graph if seed is None else edited


def _unfit(graph: Graph, node: Node) -> str | None:
    dropped = float(node.attrs.get("p", 0.5))
    if node.attrs.get("mode", "training") != "training":
        return "it drops in inference too"
    if node.attrs.get("axes") not in (None, ()):
        return "elements share what is drawn along axes"
    if node.type.dtype != "float32":
        return f"it is {node.type.dtype}"
    if not 0 < dropped < 1:
        return f"its share is {dropped}"
    if any(graph.users(value) or graph.is_output(value) for value in node.values[1:]):
        return "its mask is read"
    return None
