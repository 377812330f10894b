"""Graphs rewritten by passes that measure, for the machine at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from graphopt.backend.kept_results import kept
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.ir.graph import Graph
from graphopt.ir.naming import Placeholders, renamed
from graphopt.ir.node import FUSED, RECURRENCE
from graphopt.ir.ops import canonical
from graphopt.passes.fuse_pointwise import FusePointwise
from graphopt.passes.fuse_reduction import FuseReduction
from graphopt.passes.pack_products import PackProducts
from graphopt.passes.replace_dense import ReplaceDense
from graphopt.passes.select_gemm import SelectGemm
from graphopt.passes.select_recurrence import SelectRecurrence
from graphopt.pipeline.base import Pass, Settings
from graphopt.pipeline.manager import run_passes
from graphopt.pipeline.remarks import RemarkKind

_FROZEN: Final = Settings("inference", frozen=True)


@dataclass(frozen=True)
class Tuned:
    """A graph, and what was measured and changed in it; whether no pass failed."""

    graph: Graph
    told: tuple[str, ...] = ()
    is_whole: bool = True

    def named(self, names: Placeholders) -> Tuned:
        """The same with names for placeholders."""
        told = tuple(map(names.text, self.told))
        return replace(self, graph=renamed(self.graph, names.name), told=told)


@dataclass(frozen=True)
class Products:
    """A frozen graph with the fastest of MXNet's products, and one with packed ones besides.

    ``packed`` is ``None`` where packing is nowhere faster. They are two, so that engines without
    packed products run what they would if there were none: where ``dot`` is faster than
    FullyConnected, and activations fused with what is around them.
    """

    plain: Tuned
    packed: Tuned | None

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Both, or the one."""
        return tuple(tuned.graph for tuned in (self.plain, self.packed) if tuned is not None)

    @property
    def is_whole(self) -> bool:
        """Whether no pass failed on either."""
        return self.plain.is_whole and (self.packed is None or self.packed.is_whole)

    def named(self, names: Placeholders) -> Products:
        """The same with names for placeholders."""
        packed = None if self.packed is None else self.packed.named(names)
        return Products(self.plain.named(names), packed)


def tune(graph: Graph) -> Products:
    """A frozen graph with the products that are the fastest here."""
    if not _has_layers(graph):
        return Products(Tuned(graph), None)
    return kept(graph, ("products",), _products)[0]


def _products(graph: Graph) -> Products:
    opened, fusing = graph, tuple[Pass, ...]()
    if any(node.op == FUSED for node in graph):
        # Regions grow anew, as a product without its bias leaves that to them.
        fusing = (FuseReduction(), FusePointwise())
        opened = unfuse(graph, lambda _graph, node: node.op == FUSED)
    selected, packed = _run(opened, (SelectGemm(),)), _run(opened, (PackProducts(),))
    is_whole = selected.is_whole and packed.is_whole
    best = Tuned(graph, (), is_whole)
    if selected.told:
        fused = _run(selected.graph, fusing)
        best = Tuned(fused.graph, selected.told, is_whole and fused.is_whole)
    if not packed.told:
        return Products(best, None)
    rest = _run(packed.graph, (SelectGemm(), *fusing))
    return Products(best, Tuned(rest.graph, (*packed.told, *rest.told), rest.is_whole))


def tune_learning(graph: Graph) -> Tuned:
    """A graph that is not frozen, its dense layers by our products where these are faster."""
    if not _has_layers(graph):
        return Tuned(graph)
    return _run(graph, (ReplaceDense(),), Settings("training"))


def tune_recurrences(graph: Graph, *, training: bool) -> Tuned:
    """A graph whose recurrences multiply by what is faster."""
    if not any(node.op == RECURRENCE for node in graph):
        return Tuned(graph)
    return _run(graph, (SelectRecurrence(),), Settings("training" if training else "inference"))


def _has_layers(graph: Graph) -> bool:
    return any(canonical(node.op) == "FullyConnected" for node in graph)


def _run(graph: Graph, passes: Sequence[Pass], settings: Settings = _FROZEN) -> Tuned:
    result = run_passes(graph, passes, settings, MXNetTarget())
    telling = (PackProducts.name, SelectGemm.name, ReplaceDense.name, SelectRecurrence.name)
    told = (
        f"{', '.join(remark.nodes)}: {remark.message}"
        for remark in result.remarks
        if remark.kind is RemarkKind.PASSED and remark.pass_name in telling
    )
    return Tuned(result.graph, tuple(told), result.is_whole)
