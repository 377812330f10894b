"""Attention as one node: products, what lies between them, and Dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.backend.unfuse import unfuse
from graphopt.ir.attrs import AttrValue
from graphopt.ir.graph import Graph
from graphopt.ir.node import (
    ATTENTION,
    DATA,
    DROPOUT,
    FUSED,
    INTERLEAVED_DOT,
    PARALLEL_BATCH_DOT,
    Node,
    NodeId,
    Value,
)
from graphopt.ir.ops import info
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse
from graphopt.passes.fusion.region import replace_region
from graphopt.pipeline.base import Pass, PassContext

_PRODUCTS = (INTERLEAVED_DOT, PARALLEL_BATCH_DOT)


@dataclass(frozen=True)
class Site:
    """Where matrices lie: see kernels/bridge/attention.h for the numbers."""

    value: Value
    form: int
    heads: int = 1
    parts: int = 1
    part: int = 0


@dataclass(frozen=True)
class Match:
    """Nodes that compute attention.

    Attributes:
        scores: the product of queries and keys.
        kernel: what is computed of scores.
        position: which input of the kernel scores are.
        dropout: of the kernel's result, if there is one.
        mixture: the product with the values.
        nodes: all of them and the reshapes between, in topological order.
    """

    scores: Node
    kernel: Node
    position: int
    dropout: Node | None
    mixture: Node
    nodes: tuple[Node, ...]

    @property
    def sites(self) -> tuple[Site, Site, Site]:
        """Of queries, keys and values."""
        return (*_sites_of_scores(self.scores), _site_of_values(self.mixture))


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Scores of attention are computed some rows at a time, and never written as a whole.

    The product of queries and keys, the kernel over rows of scores (scales, masks, softmax),
    Dropout and the product with the values become one node. Rows of scores stay in the second-level
    cache, and backward computes them again: of 8 sequences of 512 words and 12 heads that is 100 MB
    each layer and array less. After FlashAttention (Dao, Fu, Ermon, Rudra and Re, 2022); here rows
    are whole. float32 on CPUs.

    Example::

        // before
        graph net(%qkv: f32[16,4,96]) {
          %s = graphopt_interleaved_dot(%qkv) {heads=2, kind="selfatt_qk"} : f32[8,16,16]
          %p = graphopt_fused(%s)
            {spec="f32[a,b|c] (f32[a,b,c]) { %1 = softmax %0; return %1:f32[a,b,c] }"}
            : f32[8,16,16] [
            graph region(%in0: f32[8,16,16]) {
              %p = softmax(%in0) : f32[8,16,16]
              return %p
            }
          ]
          %y = graphopt_interleaved_dot(%qkv, %p) {heads=2, kind="selfatt_valatt"} : f32[16,4,32]
          return %y
        }
        // after
        graph net(%qkv: f32[16,4,96]) {
          %y_attention = graphopt_attention(%qkv) {heads=0, keys=(0, 2, 2, 3, 1),
            mixed=(2, 2, 1, 0), queries=(0, 2, 2, 3, 0), scaled=True, scores=0,
            spec="f32[a,b|c] (f32[a,b,c]) { %1 = softmax %0; return %1:f32[a,b,c] }",
            values=(0, 2, 2, 3, 2)} : f32[16,4,32] [
            graph region(%in0: f32[16,4,96]) {
              %s = _contrib_interleaved_matmul_selfatt_qk(%in0) {heads=2} : f32[8,16,16]
              %p = softmax(%s) : f32[8,16,16]
              %y = _contrib_interleaved_matmul_selfatt_valatt(%in0, %p) {heads=2}
                : f32[16,4,32]
              return %y
            }
          ]
          return %y_attention
        }
    """

    name: ClassVar[str] = "fuse-attention"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace what is found, one after the other; linear."""
        ends = [node for node in graph if node.op in _PRODUCTS and _is_mixture(node)]
        if not ends:
            return graph
        held = held_nodes(graph)
        edited = graph.copy()
        found = 0
        for end in ends:
            match = _match(graph, end)
            if match is None:
                continue
            why = _refusal(graph, match, held, training=cx.training)
            if why is not None:
                cx.missed(f"attention stays apart: {why}", end)
                continue
            _replace(graph, edited, match)
            cx.passed("scores are computed some rows at a time", end)
            cx.count("attentions")
            found += 1
        return edited if found else graph


# What there is


def _is_mixture(node: Node) -> bool:
    """Whether a product can be of attention's weights and values."""
    if node.op == INTERLEAVED_DOT:
        return str(node.attrs["kind"]).endswith("_valatt")
    turned = node.attrs.flag("transpose_a") or node.attrs.flag("transpose_b")
    return not turned and not node.attrs.get("heads_a")


def _is_scores(node: Node) -> bool:
    if node.op == INTERLEAVED_DOT:
        return str(node.attrs["kind"]).endswith("_qk")
    if node.op != PARALLEL_BATCH_DOT or node.attrs.flag("transpose_a"):
        return False
    return node.attrs.flag("transpose_b") and not node.attrs.get("heads_out")


def _match(graph: Graph, mixture: Node) -> Match | None:
    """The nodes in front of the product with the values, if they are what they should be."""
    behind: list[Node] = [mixture]
    node = _alone(graph, mixture.inputs[0 if mixture.op == PARALLEL_BATCH_DOT else 1], behind)
    dropout = None
    if node is not None and node.op == DROPOUT:
        dropout = node
        behind.append(node)
        node = _alone(graph, node.inputs[0], behind)
    if node is None or node.op != FUSED or len(node.types) != 1:
        return None
    behind.append(node)
    for position, value in enumerate(node.inputs):
        before: list[Node] = []
        scores = _alone(graph, value, before)
        if scores is not None and _is_scores(scores):
            nodes = (scores, *before[::-1], *behind[::-1])
            return Match(scores, node, position, dropout, mixture, nodes)
    return None


def _alone(graph: Graph, value: Value, views: list[Node]) -> Node | None:
    """The node of a value that nothing else reads, through views that keep rows, which it notes."""
    while True:
        node = graph[value.node]
        if len(graph.users(value)) != 1 or graph.is_output(value) or node.after or node.is_input:
            return None
        facts = info(node.op, node.attrs)
        if not facts.view or facts.stops_gradient or facts.loss or len(node.inputs) != 1:
            return node
        before, after = graph.type_of(node.inputs[0]), node.type
        if not before.shape or not after.shape or before.shape[-1] != after.shape[-1]:
            return node
        views.append(node)
        value = node.inputs[0]


def _sites_of_scores(node: Node) -> tuple[Site, Site]:
    first, last = node.inputs[0], node.inputs[-1]
    if node.op == PARALLEL_BATCH_DOT:
        return _stacked(node, first, "heads_a"), _stacked(node, last, "heads_b")
    heads = int(node.attrs["heads"])
    if len(node.inputs) == 1:
        return Site(first, 2, heads, 3, 0), Site(first, 2, heads, 3, 1)
    return Site(first, 2, heads), Site(last, 2, heads, 2, 0)


def _site_of_values(node: Node) -> Site:
    if node.op == PARALLEL_BATCH_DOT:
        return _stacked(node, node.inputs[1], "heads_b")
    heads, parts = int(node.attrs["heads"]), 3 if node.attrs["kind"] == "selfatt_valatt" else 2
    return Site(node.inputs[0], 2, heads, parts, parts - 1)


def _stacked(node: Node, value: Value, key: str) -> Site:
    heads = int(node.attrs.get(key) or 0)
    return Site(value, 1, heads) if heads else Site(value, 0)


def _mixed(node: Node) -> tuple[int, ...]:
    if node.op == INTERLEAVED_DOT:
        return (2, int(node.attrs["heads"]), 1, 0)
    heads = int(node.attrs.get("heads_out") or 0)
    return (1, heads, 1, 0) if heads else (0, 1, 1, 0)


# Whether it can be


def _refusal(
    graph: Graph, match: Match, held: frozenset[NodeId] | set[NodeId], *, training: bool
) -> str | None:
    if any(node.id in held or node.after for node in match.nodes):
        return "a control dependency names it"
    scores, weights = match.scores.type.shape, match.kernel.type.shape
    if not scores or not weights or None in scores or None in weights:
        return "a shape is not known"
    spec = parse(match.kernel.attrs["spec"])
    why = _unfit(spec, match.position)
    if why is not None:
        return why
    seen = graph.type_of(match.kernel.inputs[match.position]).shape
    if seen != weights or weights[-2:] != scores[-2:]:
        return "the kernel sees other rows than the products"
    if not _whole(match.sites):
        return "an array has parts that attention does not read"
    if training and match.position not in differentiate(spec).wrt:
        return "scores have no gradient"
    return None


def _unfit(spec: KernelSpec, position: int) -> str | None:
    if spec.dtype != "float32" or spec.inputs[position].dtype != "float32":
        return f"its kernel computes {spec.dtype}"
    if spec.inner != 1 or spec.columns or spec.rank not in (3, 4):
        return "its kernel does not read rows of scores"
    everywhere = tuple(range(spec.rank))
    result = spec.outputs[0].operand
    if spec.inputs[position].axes != everywhere or result.axes != everywhere:
        return "its kernel does not make as many scores as it reads"
    return None if result.dtype == "float32" else f"its kernel makes {result.dtype}"


def _whole(sites: tuple[Site, ...]) -> bool:
    """Whether each part of an interleaved array is read by one site."""
    parts: dict[Value, list[int]] = {}
    for site in sites:
        if site.parts > 1:
            parts.setdefault(site.value, []).append(site.part)
    return all(
        sorted(parts[site.value]) == list(range(site.parts)) for site in sites if site.parts > 1
    )


# Making it so


def _replace(graph: Graph, edited: Graph, match: Match) -> None:
    inputs: list[Value] = []
    shared: dict[Value, int] = {}
    places: dict[str, AttrValue] = {}
    for key, site in zip(("queries", "keys", "values"), match.sites, strict=True):
        if site.parts > 1 and site.value in shared:
            at = shared[site.value]
        else:
            at = len(inputs)
            inputs.append(site.value)
            if site.parts > 1:
                shared[site.value] = at
        places[key] = (at, site.form, site.heads, site.parts, site.part)
    inputs += [v for at, v in enumerate(match.kernel.inputs) if at != match.position]
    attrs: dict[str, AttrValue] = {
        **places,
        "spec": match.kernel.attrs["spec"],
        "scores": match.position,
        "mixed": _mixed(match.mixture),
        "scaled": match.scores.op == INTERLEAVED_DOT,
        "heads": _heads_of_kernel(match),
    }
    if match.dropout is not None:
        inputs.append(match.dropout.inputs[1])
        attrs |= {key: match.dropout.attrs[key] for key in ("p", "salt")}
    body = unfuse(_body(graph, match, inputs))
    out = [match.mixture.out()]
    replace_region(edited, match.nodes, inputs, out, ATTENTION, attrs, body, "attention")


def _heads_of_kernel(match: Match) -> int:
    shape = match.kernel.type.shape or ()
    return int(shape[1] or 0) if len(shape) == 4 else 0


def _body(graph: Graph, match: Match, inputs: list[Value]) -> Graph:
    """The nodes as they are, with the inputs of the new one."""
    body = Graph("region")
    new: dict[Value, Value] = {}
    for at, value in enumerate(inputs):
        new[value] = body.add_input(f"in{at}", DATA, graph.type_of(value)).out()
    for node in match.nodes:
        reads = [new[value] for value in node.inputs]
        copy = body.add(node.op, reads, node.attrs, node.types, node.name, graphs=node.graphs)
        new |= {node.out(i): copy.out(i) for i in range(len(node.types))}
    body.set_outputs([new[match.mixture.out()]])
    return body
